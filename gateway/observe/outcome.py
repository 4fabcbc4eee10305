"""How a request ended, told from what ended it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from gateway.errors import (
    BadRequest,
    ContentPolicy,
    ContextTooLong,
    GatewayError,
    Internal,
    Rejected,
    Upstream,
)


class Outcome(NamedTuple):
    status: int
    """An HTTP status; 499, as nginx has it, for a client that left before the end."""
    code: str | None


CUT = "cut"
"""With this message work is cancelled whose answer a guard has cut."""

UPSTREAM = frozenset(
    {
        *("upstream_auth", "upstream_billing", "upstream_cut", "upstream_empty", "upstream_error"),
        *("upstream_malformed", "upstream_refused", "upstream_timeout", "upstream_unavailable"),
    }
)
"""What a model's server can do wrong. Its own codes, which can be any text, stay in the receipt."""


def outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, GatewayError):
        return Outcome(error.status, error.code)
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return Outcome(499, CUT if CUT in error.args else "client_left")
    return Outcome(500, "internal_error")


def reason_of(error: BaseException) -> str:
    """Why a request failed, in one of a bounded number of words: for logs, the ledger and metrics."""
    match error:
        case ContextTooLong():
            return "context_length_exceeded"
        case ContentPolicy():
            return "upstream_content_policy"
        case Rejected():
            return "upstream_rejected"
        case Upstream():
            return error.code if error.code in UPSTREAM else "upstream_error"
        case BadRequest():
            return error.code or "invalid_request"
        case GatewayError():
            return error.code or error.type
        case _:
            return outcome_of(error).code or "error"


def is_refusal(error: BaseException, attempts: int) -> bool:
    """The gateway itself said no: it asked no model (``attempts``), and none had failed before."""
    return not attempts and isinstance(error, GatewayError) and not isinstance(error, Upstream | Internal)
