"""A request's body of JSON, read into a type: what it does not fit is refused by the field's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from engine.errors import InvalidRequest, UnsupportedParameter

MAX_BIASES = 1024
MAX_FIELDS = 256
"""Of a body, ignored ones included."""


class StrictBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    def check(self) -> None:
        """Raises ``InvalidRequest`` for what types do not express."""


Body = TypeVar("Body", bound=StrictBody)


def read(kind: type[Body], data: bytes) -> Body:
    """Raises ``InvalidRequest``, which names the field."""
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    if not isinstance(raw, dict):
        raise InvalidRequest("The body must be a JSON object.")
    if len(raw) > MAX_FIELDS:
        raise InvalidRequest(f"The body has {len(raw)} fields, and {MAX_FIELDS} is the most.")
    biases = raw.get("logit_bias")
    if isinstance(biases, dict) and len(biases) > MAX_BIASES:
        # Checked here, as pydantic validates objects to their end.
        raise InvalidRequest(
            f"'logit_bias' has {len(biases)} tokens, and {MAX_BIASES} is the most.", param="logit_bias"
        )
    try:
        body = kind.model_validate(raw)
    except ValidationError as error:
        raise _from_pydantic(error) from None
    body.check()
    return body


def _from_pydantic(error: ValidationError) -> InvalidRequest:
    problems = error.errors(include_url=False, include_context=False)
    # For a field of several types pydantic reports an error for each: the deepest one is the relevant one.
    first = problems[0]["loc"][:1]
    problem = max((p for p in problems if p["loc"][:1] == first), key=_got_far)
    param = _path(problem["loc"])
    if problem["type"] == "extra_forbidden":
        return UnsupportedParameter(
            f"'{param}' is not a parameter of this engine. Leave it out.", param=param
        )
    if problem["type"] == "missing":
        return InvalidRequest(f"'{param}' is missing.", param=param)
    return InvalidRequest(f"'{param}': {problem['msg']}.", param=param)


def _got_far(problem: Mapping[str, Any]) -> tuple[int, bool]:
    depth = sum(isinstance(step, int) for step in problem["loc"])
    return depth, not problem["type"].endswith("_type")


def _path(place: tuple[int | str, ...]) -> str:
    """``("messages", 0, "content", "str")`` → ``messages[0].content``: pydantic's names of types are left out."""
    path = ""
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and step not in ("str", "int", "float", "bool", "dict", "list"):
            path += f".{step}" if path else step
    return path
