"""Anthropic's errors as the gateway's (https://platform.claude.com/docs/en/api/errors)."""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson

from gateway.backends.openai_errors import Outage, retry_after
from gateway.errors import (
    ContentPolicy,
    ContextTooLong,
    GatewayError,
    RateLimited,
    Rejected,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.types import Json

_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""For errors without a status, as in a stream."""

# The type of all these is invalid_request_error; only the messages differ.
_TOO_LONG = re.compile(r"prompt is too long|exceeds? (the )?(model's )?context (limit|window)", re.IGNORECASE)
_POLICY = re.compile(r"content filtering policy|usage polic|acceptable use", re.IGNORECASE)
_BILLING = re.compile(r"credit balance is too low", re.IGNORECASE)


def from_response(
    backend: str, status: int, headers: Mapping[str, str], body: bytes, outage: Outage
) -> GatewayError:
    """The error for an answer other than 200."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError:
        raw = None
    kind, message = _type_and_message(raw.get("error") if isinstance(raw, dict) else None)
    return _error(backend, status, kind, message, retry_after(headers.get("retry-after")), outage)


def from_event(backend: str, error: Json, outage: Outage) -> GatewayError:
    """The error for an ``error`` event of a stream, or for an error in the body of a 200."""
    kind, message = _type_and_message(error)
    return _error(backend, _STATUS.get(kind, 500), kind, message, None, outage)


def _type_and_message(error: Json) -> tuple[str, str]:
    if not isinstance(error, dict):
        return "", ""
    return str(error.get("type") or ""), str(error.get("message") or "")


def _error(
    backend: str, status: int, kind: str, message: str, wait: float | None, outage: Outage
) -> GatewayError:
    detail = f": {message}" if message else "."
    match status:
        case 401 | 403:
            return UpstreamFailed(
                f"Backend '{backend}' refused the gateway's own credentials; its api_key needs the operator's care.",
                code="upstream_auth",
            )
        case 402:
            return _unpaid(backend)
        case 408 | 504:
            return UpstreamTimeout(f"Backend '{backend}' timed out{detail}")
        case 413:
            return ContextTooLong(
                message or "The request is larger than this model's provider takes.",
                status=status,
                type=kind,
                param="messages",
                code="request_too_large",
            )
        case 429:
            wait = outage.wait() if wait is None else wait
            return RateLimited(f"Rate limit reached for backend '{backend}'{detail}", retry_after=wait)
        case 503 | 529:
            wait = outage.wait() if wait is None else wait
            return UpstreamUnavailable(f"Backend '{backend}' is not available{detail}", retry_after=wait)
        case _ if 400 <= status < 500 and message:
            return _refusal(backend, status, kind, message)
        case _:
            code = "upstream_refused" if 400 <= status < 500 else "upstream_error"
            return UpstreamFailed(
                f"Backend '{backend}' answered with {kind or f'status {status}'}{detail}", code=code
            )


def _refusal(backend: str, status: int, kind: str, message: str) -> GatewayError:
    if _TOO_LONG.search(message):
        return ContextTooLong(
            message, status=status, type=kind, param="messages", code="context_length_exceeded"
        )
    if _POLICY.search(message):
        return ContentPolicy(
            message, status=status, type=kind, param="messages", code="content_policy_violation"
        )
    if _BILLING.search(message):
        return _unpaid(backend)
    code = "not_found" if status == 404 else None
    return Rejected(message, status=status, type=kind, param=None, code=code)


def _unpaid(backend: str) -> UpstreamFailed:
    return UpstreamFailed(
        f"Backend '{backend}' wants to be paid; the account behind its api_key needs the operator's care.",
        code="upstream_billing",
    )
