"""The names of fields as JSON has them: Google's servers take ``system_instruction`` for ``systemInstruction``, and
one entry in place of a list of one (https://protobuf.dev/programming-guides/json)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.types import Json

_UNDERSCORE = re.compile(r"(?<=[a-z0-9])_([a-z0-9])")

_FIELDS: Mapping[str, Mapping[str, str]] = {
    "body": {
        "contents": "content*",
        "content": "content",
        "systemInstruction": "content",
        "tools": "tool*",
        "toolConfig": "toolConfig",
        "generationConfig": "config",
        "safetySettings": "plain*",
        "generateContentRequest": "body",
        "requests": "body*",
    },
    "content": {"parts": "part*"},
    "part": {
        "inlineData": "plain",
        "fileData": "plain",
        "functionCall": "plain",
        "functionResponse": "response",
        "videoMetadata": "plain",
        "executableCode": "plain",
        "codeExecutionResult": "plain",
    },
    "response": {"parts": "part*"},
    "tool": {"functionDeclarations": "plain*"},
    "toolConfig": {"functionCallingConfig": "plain"},
    "config": {"thinkingConfig": "plain"},
    "plain": {},
}
"""Messages of the API, and which of their fields hold others; what is not here is the caller's own, or left alone."""


def camel(value: Json, message: str = "body") -> Json:
    """``value``, one of these messages, with its fields in camel case."""
    if not isinstance(value, dict):
        return value
    fields = _FIELDS[message]
    named: dict[str, Any] = {}
    for name, one in value.items():
        name = _UNDERSCORE.sub(_upper, name) if "_" in name else name
        kind = fields.get(name)
        if kind is not None and kind.endswith("*"):
            one = [camel(each, kind[:-1]) for each in (one if isinstance(one, list) else _listed(one))]
            if not one and value.get(name) is None:
                continue
        elif kind is not None:
            one = camel(one, kind)
        if one is not None:  # as if it were not there
            named[name] = one
    return named


def _listed(one: Json) -> list[Json]:
    return [] if one is None else [one]


def _upper(found: re.Match[str]) -> str:
    return found[1].upper()
