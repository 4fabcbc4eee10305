"""What documents of the schema say of parts whose content is looked at where it is read, and not by their types."""

from __future__ import annotations

from typing import Any

from gateway.types import Json

_TEXT = {"type": "string"}


def _kind(name: str, /, **fields: Json) -> dict[str, Json]:
    properties = {"type": {"const": name}, **fields}
    return {"properties": properties, "required": list(properties)}


def _source(kind: str, /, **fields: Json) -> dict[str, Json]:
    properties = {"type": {"const": kind}, **fields}
    return {"type": "object", "properties": properties, "required": list(properties)}


_URL, _FILE = _source("url", url=_TEXT), _source("file", file_id=_TEXT)
_BASE64 = _source("base64", media_type=_TEXT, data=_TEXT)
_BLOCKS: list[dict[str, Json]] = [
    _kind("text", text=_TEXT),
    _kind("image", source={"anyOf": [_BASE64, _URL, _FILE]}),
    _kind("document", source={"anyOf": [_source("text", data=_TEXT), _BASE64, _URL, _FILE]}),
    _kind("tool_use", id=_TEXT, name=_TEXT, input={"type": "object"}),
    _kind(
        "tool_result",
        tool_use_id=_TEXT,
        content={
            "anyOf": [_TEXT, {"type": "array", "items": {"type": "object", **_kind("text", text=_TEXT)}}]
        },
    ),
    _kind("thinking", thinking=_TEXT, signature=_TEXT),
    _kind("redacted_thinking", data=_TEXT),
]


def block(schema: dict[str, Any]) -> None:
    """A content block: one of those that every model can be told of."""
    schema["anyOf"] = _BLOCKS


def text_block(schema: dict[str, Any]) -> None:
    """A block of the system prompt: text alone."""
    schema["anyOf"] = _BLOCKS[:1]


def turn(schema: dict[str, Any]) -> None:
    """Which blocks a turn may have depends on whose it is. That the last one must be one that a model can answer, no
    schema can say."""
    for branch in schema["properties"]["content"]["anyOf"]:
        if branch.get("type") == "array":
            branch["minItems"] = 1


def tool(schema: dict[str, Any]) -> None:
    """A tool of the caller's has a name and a schema of what goes in; others are the provider's own."""
    schema["properties"]["name"] = {"type": "string", "minLength": 1}
    schema["properties"]["input_schema"] = {"type": "object"}
    schema["required"] = ["name", "input_schema"]


def tool_choice(schema: dict[str, Any]) -> None:
    kinds = {"properties": {"type": {"enum": ["any", "auto", "none"]}}}
    schema["anyOf"] = [kinds, _kind("tool", name=_TEXT)]
