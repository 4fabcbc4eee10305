"""Errors of ours in Anthropic's shape (https://platform.claude.com/docs/en/api/errors); the HTTP status stays ours."""

from __future__ import annotations

import re

import orjson

from gateway.errors import ContextTooLong, GatewayError, NotCached
from gateway.types import Json

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


_PARTS = re.compile(
    r"maximum context length is (\d+) tokens.*?\((\d+) (?:in|of|from) (?:the|your) ", re.DOTALL
)
"""OpenAI's message: the limit, and how many tokens of what was asked for are the prompt's."""


def _fits(message: str) -> bool:
    """Whether the prompt alone fits: then ``max_tokens`` is too large."""
    found = _PARTS.search(message)
    return found is not None and int(found[2]) < int(found[1])


def error_value(error: GatewayError, request_id: str) -> dict[str, Json]:
    kind = (
        error.type
        if isinstance(error, NotCached)
        else _TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
    )
    return {
        "type": "error",
        "error": {"type": kind, "message": _message(error)},
        "request_id": request_id,
    }


def error_body(error: GatewayError, request_id: str) -> bytes:
    return orjson.dumps(error_value(error, request_id))


def _message(error: GatewayError) -> str:
    if isinstance(error, ContextTooLong) and "prompt is too long" not in error.message:
        if _fits(error.message):
            # Anthropic's message: clients recognise it and ask for less.
            return f"input length and `max_tokens` exceed context limit: {error.message}"
        # Clients recognise this and shorten the conversation.
        return f"prompt is too long: {error.message}"
    if error.param and error.param not in error.message:
        return f"{error.param}: {error.message}"
    return error.message
