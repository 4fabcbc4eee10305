"""How a request ended, by the exception that ended it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from gateway.errors import (
    BadRequest,
    ContentPolicy,
    ContextTooLong,
    GatewayError,
    Internal,
    ModelUnavailable,
    Rejected,
    Upstream,
)


class Outcome(NamedTuple):
    status: int
    """An HTTP status; 499, as nginx has it, for a client that left before the end."""
    code: str | None


CUT = "cut"
"""The message of a cancellation after a guard has cut the answer."""

UPSTREAM = frozenset(
    {
        *("upstream_auth", "upstream_billing", "upstream_cut", "upstream_empty", "upstream_error"),
        *("upstream_malformed", "upstream_refused", "upstream_timeout", "upstream_unavailable"),
    }
)
"""Failures of a model's server. Its own codes, which can be any text, are only in the receipt."""


def outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, GatewayError):
        return Outcome(error.status, error.code)
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return Outcome(499, CUT if CUT in error.args else "client_left")
    return Outcome(500, "internal_error")


def reason_of(error: BaseException) -> str:
    """Why a request failed, as one of a bounded set of codes: for logs, the ledger and metrics."""
    match error:
        case ContextTooLong():
            return "context_length_exceeded"
        case ContentPolicy():
            return "upstream_content_policy"
        case Rejected():
            return "upstream_rejected"
        case ModelUnavailable():
            return "model_unavailable"
        case Upstream():
            return error.code if error.code in UPSTREAM else "upstream_error"
        case BadRequest():
            return error.code or "invalid_request"
        case GatewayError():
            return error.code or error.type
        case _:
            return outcome_of(error).code or "error"


def is_refusal(error: BaseException, attempts: int) -> bool:
    """Whether the gateway itself refused the request, without an attempt to call a model."""
    return not attempts and isinstance(error, GatewayError) and not isinstance(error, Upstream | Internal)
