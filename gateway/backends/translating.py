"""What backends share whose provider has an API of its own: a request is fitted, refused or reported on before it is
translated, and no field of it is lost in silence."""

from __future__ import annotations

from gateway.backends import extras, fitting, known_fields
from gateway.errors import BadRequest
from gateway.policy.schema import Target
from gateway.types import Call, ChatRequest
from gateway.wire.field_table import FieldTable


def prepared(
    backend: str, call: Call, target: Target, fields: FieldTable, *, api: str, strict: bool
) -> ChatRequest:
    """The call's request with what ``api`` takes of its parameters; what is left out is reported, or refused where the
    policy is ``strict``. Raises ``BadRequest`` for embeddings, too, and for what a budget cannot hold."""
    if call.request.embeds:
        raise BadRequest(
            f"Backend '{backend}' is {api}, which has no embeddings here. Ask for a model whose backend is an "
            "embedder.",
            param="model",
            code="unsupported_parameter",
        )
    fitting.clear_reports(call)
    # What the gateway asks for itself is unknown to most providers.
    asked = fitting.without(fitting.fitted(call, fitting.CAPS[1]), call.optional_params)
    fields.given(asked)
    if names := fields.left_out(asked):
        if strict:
            raise known_fields.refused(backend, names[0])
        fitting.report_ignored(call, names)
    asked = fields.kept(asked)
    extras.check(call, asked, target)
    return asked
