"""Errors of ours in OpenAI's shape and, where libraries tell errors by them, in OpenAI's words
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
        # By this code and these words clients know that they should shorten the conversation.
        body["error"]["code"] = "context_length_exceeded"
        if "maximum context length is" not in error.message:
            body["error"]["message"] = _too_long(error.message)
    return body


def error_body(error: GatewayError, request_id: str) -> bytes:
    return orjson.dumps(error_value(error))


def _too_long(said: str) -> str:
    if found := _ANTHROPICS.search(said):
        return (
            f"This model's maximum context length is {found[2]} tokens. However, your prompt has {found[1]} tokens. "
            "Shorten it."
        )
    return f"This model's maximum context length is exceeded: {said}"
