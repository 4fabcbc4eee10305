"""Whether a line that failed is done with, or runs again."""

from __future__ import annotations

from gateway.backoff import Backoff
from gateway.errors import (
    AnswerUnjudged,
    AuthUnavailable,
    BudgetSpent,
    GatewayError,
    GuardUnavailable,
    Overloaded,
    RateLimited,
    ShuttingDown,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnavailable,
)

MOST_FAILURES = 3
"""Times that a model's server may fail on one line or let its time pass, or a guard not judge its answer: it may be the
line's own fault."""
_ITS_OWN = (UpstreamFailed, UpstreamTimeout, AnswerUnjudged)
"""Failures that each cost what a model computes."""
BACKOFF = Backoff(1.0, most=60.0)
"""Until a line runs again."""


def is_final(error: BaseException | None, failures: int) -> bool:
    """Whether how a line's run ended is its result; ``failures`` is how often its server has failed on it before.

    What passes by itself is waited for as long as the batch may take: a server that is away, capacity that others
    have, a limit by the minute or the day. A spent budget is not: whoever sees that decides what to do.
    """
    match error:
        case None:
            return True
        case BudgetSpent():
            return True
        case Overloaded() | RateLimited() | UpstreamUnavailable() | ShuttingDown():
            return False
        case UpstreamFailed(code="upstream_auth" | "upstream_billing"):
            return False  # of every line, until the operator acts
        case UpstreamFailed() | UpstreamTimeout() | AnswerUnjudged():
            return failures + 1 >= MOST_FAILURES
        case GuardUnavailable() | AuthUnavailable():
            return False
        case GatewayError():
            return True
    return isinstance(error, Exception)  # a bug; what is cancelled is no exception of that kind


def counts(error: BaseException | None) -> bool:
    """Whether it is one of ``MOST_FAILURES``."""
    return isinstance(error, _ITS_OWN)


def delay_after(error: GatewayError | None, runs: int) -> float:
    """Seconds until a line that has run so often without a result runs again."""
    return BACKOFF.after(runs, error.retry_after if error is not None else None)
