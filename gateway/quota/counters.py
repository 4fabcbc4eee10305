"""What counts usage against limits. Implementations are beside this file: ``memory``, ``redis``, ``guarded``."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gateway.quota.limits import Amounts, Limits

SLOT_MS = 1_000
SLOTS = 60
"""A minute is this many slots, and the one that has begun: in no 60 s more than the limit is let in, and what was let
in counts for 61 s at most."""
DAY_MS = 86_400_000
DEBT_MINUTES = 60
"""Minutes over which a debt is spread at most; what is more falls into the last."""


class Elastic(NamedTuple):
    """How far a reservation may fall short of what is asked for."""

    least: Amounts
    usual: Amounts
    """What most such requests need. Less is taken only where no more will come free as requests under way end."""
    share: int = 1
    """Beyond ``usual``, only one part in so many of the room there is."""


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
    granted: Amounts | None = None
    """What an admitted request holds; None where nobody counts."""


class Counters(Protocol):
    """Reservations are all or nothing, and known by their request's id: a repetition changes nothing.

    With ``elastic`` "all" is as much of ``amounts`` as there is room for, of each quantity by itself.
    """

    async def reserve(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: Elastic | None = None
    ) -> Verdict:
        """Count ``amounts`` against every limit, or against none.

        Raises ``gateway.stores.store.StoreDown``. When this raises anything, a cancellation included, what may have
        been reserved is given back without the caller's doing.
        """
        ...

    async def extend(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: Elastic | None = None
    ) -> Verdict:
        """Hold ``amounts`` from now on in place of what the request held. A refusal leaves it as it was.

        Of a request that holds nothing, or is settled, the verdict is a refusal by no limit (-1). Raises as
        ``reserve`` does; the request then holds the one or the other.
        """
        ...

    def settle(self, request_id: str, limits: Limits, used: Amounts) -> None:
        """Put what was used in the place of what is reserved. Does not wait. What was never reserved is ignored.

        Tokens used beyond a minute's limit are a debt: they count in the minutes that follow, as many as it takes.
        """
        ...

    async def aclose(self) -> None:
        """Let every settlement through that can be within 3 s."""
        ...
