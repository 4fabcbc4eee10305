"""When another try at the same target makes sense, and how long to wait before it."""

from __future__ import annotations

import random

from gateway.errors import (
    EstimatedWait,
    GatewayError,
    NotConnected,
    RateLimited,
    UpstreamFailed,
    UpstreamUnavailable,
)

RESERVE = 10.0
"""Retries that a backend has from the start, so that little traffic does not mean none."""
MOST = 100.0
"""Retries that quiet times can save up."""
FAIL_OVER_ABOVE = 2.0
"""Seconds: a server that wants to be left alone for longer is not waited for where another can answer."""
PATIENCE = 10.0
"""Seconds that are waited for the only server there is."""
HOPELESS = frozenset({"upstream_auth", "upstream_billing", "upstream_refused"})
"""Until the operator has done something."""


class RetryBudget:
    """Retries of one backend as a share of its requests, so that a failing one is not hammered down.

    Every request pays in its share, every retry takes 1 (Finagle's RetryBudget; gRPC's proposal A6, "throttling").
    """

    __slots__ = ("_saved",)

    def __init__(self) -> None:
        self._saved = RESERVE

    def deposit(self, share: float) -> None:
        self._saved = min(self._saved + share, MOST)

    def take(self, share: float) -> bool:
        """Whether there is one more; never, where the ``share`` is 0."""
        if self._saved < 1 or not share:
            return False
        self._saved -= 1
        return True


def can_succeed(error: GatewayError) -> bool:
    """Whether the same target may answer the same request after ``error``."""
    if isinstance(error, NotConnected) or error.code in HOPELESS:
        return False
    return isinstance(error, UpstreamUnavailable | UpstreamFailed | RateLimited)


def pause(error: GatewayError, backoff: float, failed: int, *, others: bool, left: float) -> float | None:
    """Seconds to wait before the try that follows ``failed`` ones; None is not to wait, but to give the target up.

    ``others`` tells whether there is somewhere else to go, ``left`` how much time the request has. The wait is
    drawn from 0 to the doubling ``backoff``, which spreads best what failed together ("full jitter",
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), after the time that the server asks for.
    """
    asked = error.retry_after or 0.0
    if isinstance(asked, EstimatedWait):
        asked = 0.0
    if asked > (FAIL_OVER_ABOVE if others else PATIENCE):
        return None
    wait = asked + random.uniform(0, backoff * 2 ** (failed - 1))
    return wait if wait < left else None
