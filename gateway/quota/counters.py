"""What counts usage against limits. Implementations are beside this file: ``memory``, ``redis``, ``store_outage``."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gateway.quota.limits import Amounts, Limits

SLOT_MS = 1_000
SLOTS = 60
"""A minute is this many slots and the current one: no 60 s admit more than the limit, and what is admitted counts for
61 s at most."""
DAY_MS = 86_400_000
DEBT_MINUTES = 60
"""A debt is spread over at most this many minutes; the rest falls into the last."""


class Elastic(NamedTuple):
    """How far a reservation may fall short of what is asked for."""

    least: Amounts
    usual: Amounts
    """What most such requests need. Less is granted only where requests in flight will not release enough."""
    divisor: int = 1
    """Beyond ``usual``, at most the remaining capacity divided by this is granted."""

    @property
    def elastic(self) -> Elastic:
        return self


class ElasticRequest(Protocol):
    """What an ``Elastic`` can be made of. Most requests fit as they are, and never need one."""

    @property
    def divisor(self) -> int: ...
    @property
    def elastic(self) -> Elastic: ...


class QuotaDecision(NamedTuple):
    admitted: bool
    used: tuple[int, ...] = ()
    """For each limit, in order: what counts now, including an admitted request's own reservation."""
    reset: tuple[float, ...] = ()
    """Seconds until none of that counts any more, if nothing is added; 0 where only requests in flight count."""
    refused: int = -1
    """The index of the limit that refuses; of several, the one with the longest wait."""
    wait: float | None = None
    """Seconds until there is capacity; None where requests in flight hold what is missing."""
    granted: Amounts | None = None
    """What an admitted request holds; None where nothing is counted."""


class Counters(Protocol):
    """Reservations are all or nothing, and keyed by request id: a repetition changes nothing.

    With ``elastic``, as much of each quantity is granted as there is capacity for, down to its ``least``.
    """

    async def reserve(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        """Count ``amounts`` against every limit, or against none.

        Raises ``gateway.stores.store.StoreDown``. When this raises anything, a cancellation included, what may have
        been reserved is released automatically.
        """
        ...

    async def extend(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        """Reserve ``amounts`` in place of what the request holds. A refusal changes nothing.

        Of a request that holds nothing, or is settled, the decision is a refusal by no limit (-1). Raises as
        ``reserve`` does; the request then holds the one or the other.
        """
        ...

    def settle(self, request_id: str, limits: Limits, used: Amounts) -> None:
        """Replace what is reserved by what was used. Does not wait. What was never reserved is ignored.

        Tokens used beyond a minute's limit are a debt: they count in the minutes that follow, for as long as it takes.
        """
        ...

    async def aclose(self) -> None:
        """Send pending settlements, within 3 s."""
        ...
