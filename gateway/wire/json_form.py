"""The instruction that asks a model for JSON in the prompt, where a provider does not constrain decoding."""

from __future__ import annotations

import orjson

from gateway.types import Json

_OBJECT = (
    "Answer with one JSON object and nothing else: no words before or after it, no Markdown, no code fence."
)


def form_instruction(form: Json, *, prompted: bool) -> str:
    """For a ``response_format``; empty where none is needed. ``prompted``: a schema is asked for in the prompt, too."""
    match form:
        case {"type": "json_object"}:
            return _OBJECT
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}} if prompted:
            return f"{_OBJECT} It must fit this JSON schema: {orjson.dumps(schema).decode()}"
    return ""
