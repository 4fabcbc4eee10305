"""Errors of ours in Anthropic's shape (https://platform.claude.com/docs/en/api/errors); the HTTP status stays ours."""

from __future__ import annotations

import orjson

from gateway.errors import ContextTooLong, GatewayError
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


def error_value(error: GatewayError, request_id: str) -> dict[str, Json]:
    kind = _TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": _message(error)},
        "request_id": request_id,
    }


def error_body(error: GatewayError, request_id: str) -> bytes:
    return orjson.dumps(error_value(error, request_id))


def _message(error: GatewayError) -> str:
    if isinstance(error, ContextTooLong) and "prompt is too long" not in error.message:
        # By these words clients know that they should shorten the conversation.
        return f"prompt is too long: {error.message}"
    if error.param and error.param not in error.message:
        return f"{error.param}: {error.message}"
    return error.message
