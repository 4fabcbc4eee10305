"""Errors of ours in OpenAI's shape, and with OpenAI's messages where libraries recognise errors by them
(https://platform.openai.com/docs/guides/error-codes).
"""

from __future__ import annotations

import re

import orjson

from gateway.errors import ContextTooLong, GatewayError
from gateway.types import Json

_ANTHROPICS = re.compile(r"(\d+) tokens > (\d+) maximum")


def error_value(error: GatewayError) -> dict[str, Json]:
    body = error.body()
    if isinstance(error, ContextTooLong):
        # Clients recognise this code and message, and shorten the conversation.
        body["error"]["code"] = "context_length_exceeded"
        if "maximum context length is" not in error.message:
            body["error"]["message"] = _too_long(error.message)
    return body


def error_body(error: GatewayError, request_id: str) -> bytes:
    return orjson.dumps(error_value(error))


def _too_long(message: str) -> str:
    if found := _ANTHROPICS.search(message):
        return (
            f"This model's maximum context length is {found[2]} tokens. However, your prompt has {found[1]} tokens. "
            "Shorten it."
        )
    return f"This model's maximum context length is exceeded: {message}"
