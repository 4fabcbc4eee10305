"""Input items in the form in which they are stored and listed: each with its type, id and status, messages in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.errors import BadRequest
from gateway.types import Json
from gateway.wire.responses import ids

Item = Mapping[str, Json]

_ROLES = ("user", "assistant", "system", "developer")
_INPUT_PARTS = {
    "input_text": "text",
    "text": "text",
    "input_image": None,
    "input_file": None,
    "input_audio": "input_audio",
}
"""Parts of what a model is given, and the field that each must have; see ``_PLACES`` for the others."""
_PLACES = {
    "input_image": ("image_url", "file_id"),
    "input_file": ("file_data", "file_id", "file_url"),
}
"""Where the content of these may be; the first that is there counts."""
_OUTPUT_PARTS = {"output_text": "text", "input_text": "text", "text": "text", "refusal": "refusal"}
"""Parts of what a model has said."""


def read_items(given: str | Sequence[Mapping[str, Json]] | None) -> list[Item]:
    """The items of an ``input``, without ids where the caller gave none. Raises ``BadRequest``."""
    if given is None:
        return []
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_item(raw, f"input[{i}]") for i, raw in enumerate(given)]


def with_ids(items: Sequence[Item], response: str) -> list[Item]:
    """Each item with an id; ``response`` is the id of the response whose input they are."""
    return [
        item
        if item.get("id")
        else {**item, "id": ids.item_id(str(item["type"]), response, index, given=True)}
        for index, item in enumerate(items)
    ]


def _item(raw: Mapping[str, Json], where: str) -> Item:
    kind = raw.get("type") or ("message" if "role" in raw else "item_reference")
    if raw.get("id") is not None:
        _text(raw, "id", where)
    match kind:
        case "message":
            return _message(raw, where)
        case "function_call":
            for name in ("call_id", "name", "arguments"):
                _text(raw, name, where)
            return {"status": "completed", **_given(raw)}
        case "custom_tool_call":
            for name in ("call_id", "name", "input"):
                _text(raw, name, where)
            return {"status": "completed", **_given(raw)}
        case "function_call_output" | "custom_tool_call_output":
            _text(raw, "call_id", where)
            output = raw.get("output")
            if not isinstance(output, str):
                output = _parts(output, _INPUT_PARTS, f"{where}.output")
            return {"status": "completed", **_given(raw), "output": output}
        case "reasoning":
            given = {"summary": [], **_given(raw)}
            for name in ("summary", "content"):
                if not all(isinstance(part, dict) for part in _list(given.get(name, []), f"{where}.{name}")):
                    raise _invalid(f"{where}.{name}", "should be a list of parts")
            return given
        case "compaction":
            _text(raw, "encrypted_content", where)
            return _given(raw)
        case "item_reference":
            return {"type": kind, "id": _text(raw, "id", where)}
    shown = str(kind)[:64]
    raise BadRequest(
        f"'{where}' is an item of type '{shown}', which this gateway does not know. It takes messages, function_call, "
        "function_call_output, custom_tool_call, custom_tool_call_output, reasoning, compaction and item_reference. "
        "Leave it out, or send it as a message.",
        param=f"{where}.type",
        code="unsupported_item",
    )


def _message(raw: Mapping[str, Json], where: str) -> Item:
    role, content = raw.get("role"), raw.get("content")
    if role not in _ROLES:
        raise _invalid(f"{where}.role", f"should be one of {', '.join(_ROLES)}")
    said = role == "assistant"
    if isinstance(content, str):
        content = [{"type": "output_text" if said else "input_text", "text": content}]
    parts = _parts(content, _OUTPUT_PARTS if said else _INPUT_PARTS, f"{where}.content")
    if said:
        parts = [{"annotations": [], **part} if part["type"] == "output_text" else part for part in parts]
    return {"status": "completed", **_given(raw), "type": "message", "content": parts}


def _parts(content: Json, known: Mapping[str, str | None], where: str) -> list[dict[str, Json]]:
    return [_part(part, known, f"{where}[{i}]") for i, part in enumerate(_list(content, where))]


def _list(value: Json, where: str) -> list[Json]:
    if not isinstance(value, list):
        raise _invalid(where, "should be a string or a list of parts")
    return value


def _part(part: Json, known: Mapping[str, str | None], where: str) -> dict[str, Json]:
    if not isinstance(part, dict):
        raise _invalid(where, "should be an object with a type")
    kind = str(part.get("type"))
    if kind not in known:
        raise _invalid(f"{where}.type", f"should be one of {', '.join(known)}")
    name = known[kind]
    if kind in _PLACES:
        # Nulls stand for fields that are not there.
        name = next((place for place in _PLACES[kind] if part.get(place) is not None), _PLACES[kind][0])
        part = {key: value for key, value in part.items() if key == name or key not in _PLACES[kind]}
    if name == "input_audio":
        if not isinstance(part.get(name), dict):
            raise _invalid(f"{where}.{name}", "should have 'data' and 'format'")
    elif name is not None:
        _text(part, name, where)
    return {"detail": "auto", **part} if kind == "input_image" else part


def _given(raw: Mapping[str, Json]) -> dict[str, Json]:
    """Without nulls, which stand for fields that are not there."""
    return {name: value for name, value in raw.items() if value is not None}


def _text(raw: Mapping[str, Json], name: str, where: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str):
        raise _invalid(f"{where}.{name}", "is missing" if value is None else "should be a string")
    return value


def _invalid(where: str, what: str) -> BadRequest:
    return BadRequest(f"'{where}' {what}.", param=where, code="invalid_value")
