"""When a retry at the same target makes sense, and how long to wait before it."""

from __future__ import annotations

from gateway.backoff import Backoff
from gateway.errors import (
    EstimatedWait,
    GatewayError,
    NotConnected,
    RateLimited,
    UpstreamFailed,
    UpstreamUnavailable,
)

INITIAL_RETRIES = 10.0
"""Retries that a backend has from the start, for little traffic."""
MAX_SAVED_RETRIES = 100.0
"""Retries that quiet times can save up."""
MAX_WAIT_WITH_FALLBACK = 2.0
"""Seconds: a longer ``retry-after`` is not waited for where another target can answer."""
MAX_WAIT = 10.0
"""Seconds: the longest ``retry-after`` that is waited for at an only target."""
PERMANENT = frozenset({"upstream_auth", "upstream_billing", "upstream_refused"})
"""Until the operator acts."""


class RetryBudget:
    """Retries of one backend as a share of its requests, so that a failing one is not overloaded.

    Every request deposits its share, every retry takes 1 (Finagle's RetryBudget; gRPC's proposal A6, "throttling").
    """

    __slots__ = ("_saved",)

    def __init__(self) -> None:
        self._saved = INITIAL_RETRIES

    def deposit(self, share: float) -> None:
        self._saved = min(self._saved + share, MAX_SAVED_RETRIES)

    def take(self, share: float) -> bool:
        """Whether there is one more; never, where the ``share`` is 0."""
        if self._saved < 1 or not share:
            return False
        self._saved -= 1
        return True


def is_retryable(error: GatewayError) -> bool:
    """Whether the same target may answer the same request after ``error``."""
    if isinstance(error, NotConnected) or error.code in PERMANENT:
        return False
    return isinstance(error, UpstreamUnavailable | UpstreamFailed | RateLimited)


def retry_delay(
    error: GatewayError, backoff: float, failed: int, *, others: bool, left: float
) -> float | None:
    """Seconds to wait before the attempt that follows ``failed`` ones; None: try another target.

    ``others``: there are other targets. ``left`` is the request's time in seconds. The wait is
    drawn from 0 to the doubling ``backoff``, after the time that the server asks for.
    """
    asked = error.retry_after or 0.0
    if isinstance(asked, EstimatedWait):
        asked = 0.0
    if asked > (MAX_WAIT_WITH_FALLBACK if others else MAX_WAIT):
        return None
    wait = asked + Backoff(backoff).drawn(failed)
    return wait if wait < left else None
