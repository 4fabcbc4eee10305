"""Reading a request body: JSON, then its types. Every error names the field as the caller wrote it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from gateway.errors import BadRequest
from gateway.policy.schema.limits import USUAL, RequestLimits

Body = TypeVar("Body", bound=BaseModel)
Item = TypeVar("Item")

Items = Annotated[list[Item], Field(fail_fast=True)]
"""A list in a body. Only its first invalid item is reported: a megabyte can hold half a million, and take seconds."""


_BOUNDS = {
    "messages": "messages",
    "tools": "tools",
    "functions": "tools",
    "stop": "stop",
    "stop_sequences": "stop",
    "prompt": "prompts",
    "input": "prompts",
}
"""Lists in a body, and which of the policy's ``limits`` bounds them."""
_SHORT = 1024
"""Bytes."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def read_json(
    body: bytes,
    limits: RequestLimits = USUAL,
    *,
    bounds: Mapping[str, str] = _BOUNDS,
    conversation: str = "messages",
) -> dict[str, Any]:
    """The JSON object in ``body``. Raises ``BadRequest``.

    ``bounds`` names for its lists which of ``limits`` each keeps to; ``conversation`` is the one whose parts count.
    """
    if len(body) > limits.values or len(body) > limits.entries:  # each takes a byte
        _bound(body, limits)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        what = "is empty" if not body.strip() else f"is not valid JSON: {error}"
        raise BadRequest(f"The request body {what}. Send a JSON object.", code="invalid_json") from None
    if not isinstance(value, dict):
        kind = {list: "an array", str: "a string", type(None): "null"}.get(type(value), "a bare value")
        raise BadRequest(f"The request body is {kind}. Send a JSON object.", code="invalid_json")
    # Most have too few brackets for it, which in a short body are soon counted.
    deep = len(body) > _SHORT or body.count(b"{") + body.count(b"[") > limits.depth
    if deep and is_too_deep(body, value, limits.depth):
        raise BadRequest(
            f"The request body is nested more than {limits.depth} levels deep. Send flatter JSON.",
            code="invalid_json",
        )
    if body.count(b",") >= limits.shortest:  # one behind each entry of a list but the last
        _bound_lists(value, limits, bounds, conversation)
    return value


def with_model(body: bytes, limits: RequestLimits, model: str) -> bytes:
    """``body``, with ``model`` in place of its own. Raises ``BadRequest``."""
    return orjson.dumps({**read_json(body, limits), "model": model})


def with_fields(body: bytes, limits: RequestLimits, fields: Mapping[str, Any]) -> bytes:
    """``body``, with ``fields`` in place of its own; without those that are None. Raises ``BadRequest``."""
    found = {**read_json(body, limits), **fields}
    return orjson.dumps(
        {name: value for name, value in found.items() if name not in fields or value is not None}
    )


def _bound(body: bytes, limits: RequestLimits) -> None:
    """Before it is parsed, as each value takes 50 bytes of memory or more."""
    if _values(body, quotes=2) <= limits.values and body.count(b",") < limits.entries:
        return
    bare = _STRING.sub(b'"', body)
    for what, count, most in (
        ("texts, names, lists and objects", _values(bare, quotes=1), limits.values),
        ("entries of lists and objects", bare.count(b",") + 1, limits.entries),
    ):
        if count > most:
            raise BadRequest(
                f"The request body has {count} {what}, and this gateway takes {most}. Send less at once.",
                code="array_above_max_length",
            )


def _values(body: bytes, *, quotes: int) -> int:
    """How many there are, or more, as signs within texts count too. A text has so many ``quotes``."""
    return body.count(b"{") + body.count(b"[") + body.count(b'"') // quotes


def _bound_lists(
    value: Mapping[str, Any], limits: RequestLimits, bounds: Mapping[str, str], conversation: str
) -> None:
    for name in filter(bounds.__contains__, value):
        entries = value[name]
        # A prompt of token ids is one prompt.
        if type(entries) is list and entries and not isinstance(entries[0], int):
            longest: int = getattr(limits, bounds[name])
            if len(entries) > longest:
                raise too_long(name, len(entries), longest)
    messages = value.get(conversation)
    parts = 0
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        parts += len(content) if isinstance(content, list) else 0
    if parts > limits.parts:
        raise too_long(f"{conversation}[].content", parts, limits.parts)


def too_long(name: str, length: int, longest: int) -> BadRequest:
    return BadRequest(
        f"Invalid '{name}': array too long. Expected an array with maximum length {longest}, but got an array with "
        f"length {length} instead.",
        param=name,
        code="array_above_max_length",
    )


def is_too_deep(data: bytes, value: Any, depth: int) -> bool:
    """``is_deeper`` for the ``value`` of ``data``, which mostly has too few brackets for it."""
    left = depth
    for bracket in (b"{", b"["):
        # In a long one, to hop from one to the next is cheaper than to count them: most bytes are text.
        at = data.find(bracket)
        while at >= 0 and left >= 0:
            left -= 1
            at = data.find(bracket, at + 1)
    return left < 0 and is_deeper(value, depth)


def is_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects of ``value`` lie within each other more than ``depth`` times."""
    level = [value]
    for _ in range(depth):
        level = [
            one
            for each in level
            for one in (each.values() if isinstance(each, dict) else each)
            if isinstance(one, dict | list)
        ]
        if not level:
            return False
    return True


def check(schema: type[Body], raw: dict[str, Any]) -> Body:
    """``raw`` as ``schema``. Raises ``BadRequest`` that names the first field at fault.

    ``78.0`` is an integer, to JSON Schema and to many a client: where one is wanted it becomes ``78``, in ``raw``, too.
    """
    while True:
        try:
            # What ``model_validate`` calls, which looks for options first.
            checked: Body = schema.__pydantic_validator__.validate_python(raw)
            return checked
        except ValidationError as error:
            if not _make_whole(raw, error):
                raise _complaint(error) from None


def _make_whole(raw: dict[str, Any], error: ValidationError) -> bool:
    """Whether there were floats without a fraction where integers are wanted."""
    changed = False
    for one in error.errors(include_url=False, include_context=False):
        if one["type"] != "int_type" or not _is_whole(one["input"]):
            continue
        *path, last = _plain(one["loc"])
        holder: Any = raw
        for part in path:
            holder = holder[part]
        if isinstance(holder, list):
            holder[:] = [int(item) if _is_whole(item) else item for item in holder]
        else:
            holder[last] = int(holder[last])
        changed = True
    return changed


def _is_whole(value: Any) -> bool:
    return type(value) is float and abs(value) < 2**53 and value.is_integer()


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
    message = _any_of(same, worst) or worst["msg"].removeprefix("Value error, ")
    value = worst.get("input")
    shown = (
        f" (got {value!r})" if isinstance(value, bool | int | float | str) and len(repr(value)) <= 80 else ""
    )
    if not param:
        return BadRequest(f"Invalid request: {message}.", code="invalid_value")
    return BadRequest(f"Invalid value for '{param}': {message}{shown}.", param=param, code="invalid_value")


def _any_of(errors: list[ErrorDetails], worst: ErrorDetails) -> str:
    """What a value of none of the types that it may have should be; ``""`` where there is one type only."""
    if worst["type"] not in _TYPES:
        return ""
    place = _plain(worst["loc"])
    names = [_TYPES[e["type"]] for e in errors if e["type"] in _TYPES and _plain(e["loc"]) == place]
    return f"Input should be a valid {' or '.join(dict.fromkeys(names))}" if len(set(names)) > 1 else ""


_TYPES = {
    "string_type": "string",
    "list_type": "list",
    "dict_type": "dictionary",
    "int_type": "integer",
    "float_type": "number",
    "bool_type": "boolean",
}


def _plain(loc: tuple[int | str, ...]) -> list[int | str]:
    """``loc`` without pydantic's names for the branches of a union."""
    return [part for part in loc if isinstance(part, int) or (part.isidentifier() and part not in _BRANCHES)]


_BRANCHES = {"str", "int", "float", "bool", "none", "constrained"}


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in _plain(loc):
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path
