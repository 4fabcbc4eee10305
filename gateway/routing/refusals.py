"""Why a request has no candidate: no backend that its model has, in use or not, could serve it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gateway.errors import BadRequest, ContextTooLong, Forbidden, GatewayError
from gateway.media import ARTICLES, MediaKind, media_in
from gateway.metering.estimate import declared_cap
from gateway.policy.schema import Policy
from gateway.residency import nowhere_within
from gateway.routing.context_size import prompt_of, size_of
from gateway.types import Call

Serving = Callable[[str, bool, frozenset[str] | None, frozenset[MediaKind]], Sequence[str]]
"""The models that may serve one, whatever the length: takes its name, whether only local backends may, those of which
regions, and the kinds of media that must be taken."""
_MOST_NAMED = 3
"""Models in an error."""


class Refusals:
    """One policy's."""

    def __init__(self, policy: Policy, serving: Serving) -> None:
        self._policy = policy
        self._serving = serving

    def of(
        self, call: Call, local: bool, within: frozenset[str] | None, media: frozenset[MediaKind]
    ) -> GatewayError:
        """``local``: its content may go to local backends only; ``within``: to these regions only."""
        name = call.model
        if serving := self._serving(name, local, within, media):
            return self._too_long(call, serving)
        if media and self._serving(name, local, within, frozenset()):
            return self._no_media(call, local, within)
        if within is not None and not (local and self._serving(name, False, within, frozenset())):
            return nowhere_within(name, within)
        return Forbidden(
            f"This request is to stay on local backends, and the model '{name}' has none. Choose another model, "
            "or ask the operator for a target or fallback on a backend with 'local: true'.",
            param="model",
            code="local_only",
        )

    def _no_media(self, call: Call, local: bool, within: frozenset[str] | None) -> BadRequest:
        """The first kind of media that no target takes, or not beside the others; and who does."""
        found = media_in(call.request.messages or ())

        def takes(model: str, media: Iterable[MediaKind]) -> bool:
            return bool(self._serving(model, local, within, frozenset(media)))

        kind = next((kind for kind in found if not takes(call.model, (kind,))), next(iter(found)))
        others = [
            f"'{name}'" for name in self._policy.models if call.principal.may_use(name) and takes(name, found)
        ]
        such = f", such as {' or '.join(others[:_MOST_NAMED])}" if others else ""
        return BadRequest(
            f"'{found[kind]}' is {ARTICLES[kind]}, which the model '{call.model}' does not take. Leave it out, or "
            f"ask a model that does{such}.",
            param=found[kind],
            code="unsupported_parameter",
        )

    def _too_long(self, call: Call, models: Iterable[str]) -> GatewayError:
        largest = max(self._policy.models[model].context or 0 for model in models)
        cap = declared_cap(call.request.params)
        param = "prompt" if call.request.messages is None else "messages"
        if cap is not None:
            asked = (
                f"you requested about {size_of(call)} tokens ({prompt_of(call)} in the {param}, {cap} in the "
                f"completion). Please reduce the length of the {param} or completion."
            )
        else:
            asked = f"your {param} resulted in about {prompt_of(call)} tokens. Please reduce the length of the {param}."
        # OpenAI's wording, by which clients recognise this error.
        return ContextTooLong(
            f"This model's maximum context length is {largest} tokens. However, {asked}",
            status=400,
            type="invalid_request_error",
            param=param,
            code="context_length_exceeded",
        )
