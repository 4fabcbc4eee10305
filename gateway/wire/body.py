"""Reading a request body: JSON, then its types. Every complaint names the field in the caller's own terms."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError

from gateway.errors import BadRequest

Body = TypeVar("Body", bound=BaseModel)
Item = TypeVar("Item")

Items = Annotated[list[Item], Field(fail_fast=True)]
"""A list in a body. Only its first wrong item is told of: a megabyte can hold half a million, and seconds of work."""


def read_json(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Raises ``BadRequest``."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        what = "is empty" if not body.strip() else f"is not valid JSON: {error}"
        raise BadRequest(f"The request body {what}. Send a JSON object.", code="invalid_json") from None
    if not isinstance(value, dict):
        kind = {list: "an array", str: "a string", type(None): "null"}.get(type(value), "a bare value")
        raise BadRequest(f"The request body is {kind}. Send a JSON object.", code="invalid_json")
    if body.count(b"[") + body.count(b"{") > _DEPTH and not _can_be_written(value):
        raise BadRequest(
            f"The request body is nested more than {_DEPTH} levels deep. Send flatter JSON.",
            code="invalid_json",
        )
    return value


def with_model(body: bytes, model: str) -> bytes:
    """``body``, asking for ``model`` whatever it says itself. Raises ``BadRequest``."""
    return orjson.dumps({**read_json(body), "model": model})


_DEPTH = 250


def _can_be_written(value: dict[str, Any]) -> bool:
    # orjson reads deeper nesting than it writes, and what is read here is written again for the backend.
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


def check(schema: type[Body], raw: dict[str, Any]) -> Body:
    """``raw`` as ``schema``. Raises ``BadRequest`` that names the first field at fault."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        raise _complaint(error) from None


def _complaint(error: ValidationError) -> BadRequest:
    # Of a union's complaints the deepest is about the branch that the caller meant, unless one finds a list too long:
    # that one liked the items.
    all_of_them = error.errors(include_url=False, include_context=False)
    root = all_of_them[0]["loc"][:1]
    same = [e for e in all_of_them if e["loc"][:1] == root]
    worst = max(
        same,
        key=lambda e: (
            e["type"] == "too_long",
            len(_plain(e["loc"])),
            e["type"] not in ("string_type", "none_required"),
        ),
    )
    param = _path(worst["loc"])
    if worst["type"] == "missing":
        return BadRequest(
            f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
        )
    message = worst["msg"].removeprefix("Value error, ")
    value = worst.get("input")
    shown = (
        f" (got {value!r})" if isinstance(value, bool | int | float | str) and len(repr(value)) <= 80 else ""
    )
    return BadRequest(f"Invalid value for '{param}': {message}{shown}.", param=param, code="invalid_value")


def _plain(loc: tuple[int | str, ...]) -> list[int | str]:
    """``loc`` without pydantic's names for the branches of a union."""
    return [part for part in loc if isinstance(part, int) or (part.isidentifier() and part not in _BRANCHES)]


_BRANCHES = {"str", "int", "float", "bool", "none", "constrained"}


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in _plain(loc):
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path
