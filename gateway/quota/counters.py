"""What counts usage against limits. Implementations are beside this file: ``memory``, ``redis``, ``guarded``."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gateway.quota.limits import Amounts, Limits

SLOT_MS = 5_000
SLOTS = 12
"""A minute is this many slots, and the one that has begun: in no 60 s more than the limit is let in."""
DAY_MS = 86_400_000


class Verdict(NamedTuple):
    admitted: bool
    used: tuple[int, ...] = ()
    """Of each limit, in their order: what counts now, an admitted request's own reservation included."""
    reset: tuple[float, ...] = ()
    """Seconds until nothing of that counts any more, if nothing is added; 0 where only requests under way count."""
    refused: int = -1
    """Which limit stands in the way; of several, the one that does so longest."""
    wait: float | None = None
    """Seconds until there is room; None when requests under way hold what is missing."""


class Counters(Protocol):
    """Reservations are all or nothing, and known by their request's id: a repetition changes nothing."""

    async def reserve(self, request_id: str, limits: Limits, amounts: Amounts) -> Verdict:
        """Count ``amounts`` against every limit, or against none.

        Raises ``gateway.stores.store.StoreDown``. When this raises anything, a cancellation included, what may have
        been reserved is given back without the caller's doing.
        """
        ...

    def settle(self, request_id: str, limits: Limits, reserved: Amounts, used: Amounts) -> None:
        """Put what was used in the place of what was reserved. Does not wait. What was never reserved is ignored."""
        ...

    async def aclose(self) -> None:
        """Let every settlement through that can be within 3 s."""
        ...
