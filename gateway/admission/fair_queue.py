"""The queue in front of a backend: weighted fair queueing in two levels, tiers by weight and tenants by tokens.

Self-clocked fair queueing (Golestani, "A self-clocked fair queueing scheme for broadband applications", INFOCOM
1994): the first request of a flow finishes at the virtual time ``start + tokens / weight``; the least such tag is
served next, and virtual time jumps to it. A flow that was idle starts at the present virtual time: idling earns no
credit. While two flows both wait, their service by weight differs by no more than one request of each. The flows are
the tiers and, inside a tier, its tenants with equal weights. A tenant's requests keep their order.

A request's tokens are an estimate, at least 1. What it really used is entered afterwards (``correct``), so that in the
long run shares follow from usage. The queue reads no clock: callers pass the time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_DEBTORS = 10_000
"""Tiers and tenants."""


@dataclass(frozen=True, slots=True)
class QueueTerms:
    """How a tier is served. ``ageing`` is in seconds: a request that has waited so long has twice its weight."""

    weight: float = 1.0
    ageing: float = float("inf")
    max_utilization: float = 1.0
    """It is served only while less than this share of the backend is in use; 1: whenever there is capacity."""


@dataclass(slots=True, eq=False)
class Waiter(Generic[T]):
    """One queued request."""

    item: T
    tokens: int
    since: float
    number: int
    tier_queue: _TierQueue[T]
    tenant: _TenantQueue[T]


class FairQueue(Generic[T]):
    def __init__(self) -> None:
        self._tiers: dict[str, _TierQueue[T]] = {}
        self._virtual_time = 0.0
        self._numbers = count()
        self.size = 0
        """How many wait."""
        self.tokens = 0
        """Of all that wait."""
        self._debts: dict[tuple[str, str], float] = {}
        """Tokens used beyond their estimates, by tier (with no tenant) and tenant that have nothing queued."""

    def __len__(self) -> int:
        return self.size

    def length(self, tier: str) -> int:
        tier_queue = self._tiers.get(tier)
        return tier_queue.length if tier_queue is not None else 0

    def is_full(self, tier: str, tenant: str, most: int) -> bool:
        """Whether ``most`` of the tier wait. To a tenant with less than an equal part of these it is not, whoever has
        the rest, until twice as many wait: one tenant's requests must not keep all others' out."""
        tier_queue = self._tiers.get(tier)
        if tier_queue is None or tier_queue.length < most:
            return False
        own = len(self.waiters_of(tier, tenant))
        return tier_queue.length >= 2 * most or (own > 0 and own * len(tier_queue.tenants) >= most)

    def push(self, tier: str, terms: QueueTerms, tenant: str, tokens: int, now: float, item: T) -> Waiter[T]:
        """Queue a request. ``terms`` hold from now on for all that wait in this tier."""
        tier_queue = self._tiers.get(tier)
        if tier_queue is None:
            tier_queue = self._tiers[tier] = _TierQueue(
                tier, terms, self._virtual_time + self._debts.pop((tier, ""), 0.0)
            )
        tier_queue.terms = terms
        debt = self._debts.pop((tier, tenant), 0.0) if tenant not in tier_queue.tenants else 0.0
        waiter = tier_queue.push(tenant, tokens, now, next(self._numbers), item, debt)
        self.size += 1
        self.tokens += tokens
        return waiter

    def update_terms(self, terms_of: Callable[[str], QueueTerms]) -> None:
        """Apply other terms, by tier, to all that wait."""
        for tier_queue in self._tiers.values():
            tier_queue.terms = terms_of(tier_queue.tier)

    def head(self, now: float, utilization: float = 0.0) -> Waiter[T] | None:
        """The next request while the share ``utilization`` of the backend is in use. One that does not fit yet blocks
        those behind it: otherwise small requests would overtake a big one for ever.
        """
        best, least = None, float("inf")
        for tier_queue in self._tiers.values():
            if (
                tier_queue.terms.max_utilization >= 1.0
                or utilization < tier_queue.terms.max_utilization
                or not utilization
            ):
                finish = tier_queue.finish(now)
                if finish < least:
                    best, least = tier_queue, finish
        return None if best is None else best.head

    def heads(self, now: float) -> Iterator[Waiter[T]]:
        """The first of each tenant, by tier and tenant in the order in which they are served."""
        for tier_queue in sorted(self._tiers.values(), key=lambda one: one.finish(now)):
            for _, _, tenant in tier_queue.order:
                yield tenant.waiters[0]

    def take_early(self, waiter: Waiter[T]) -> None:
        """``waiter``, the first of its tenant, is served out of turn, which its tenant's and tier's turns pay for."""
        waiter.tier_queue.start += waiter.tokens / waiter.tier_queue.terms.weight
        waiter.tier_queue.remove(waiter, waiter.tenant.key[0])
        self._removed(waiter)

    def take(self, waiter: Waiter[T], now: float) -> None:
        """``waiter``, which is the ``head``, is served."""
        tier_queue = waiter.tier_queue
        self._virtual_time = tier_queue.start = max(self._virtual_time, tier_queue.finish(now))
        tier_queue.serve(waiter)
        self._removed(waiter)

    def correct(self, tier: str, terms: QueueTerms, tenant: str, more: int) -> None:
        """One that was served used ``more`` tokens than its estimate, or fewer.

        A flow with nothing queued owes the excess for as long as others wait; fewer earn it no credit.
        """
        if not more or not self.size:
            return
        tier_queue = self._tiers.get(tier)
        if tier_queue is not None:
            tier_queue.start += more / tier_queue.terms.weight
        else:
            self._add_debt((tier, ""), more / terms.weight)
        if tier_queue is None or not tier_queue.correct(tenant, more):
            self._add_debt((tier, tenant), more)

    def _add_debt(self, flow: tuple[str, str], more: float) -> None:
        debt = self._debts.get(flow, 0.0) + more
        if debt <= 0:
            self._debts.pop(flow, None)
        elif flow in self._debts or len(self._debts) < MAX_DEBTORS:
            self._debts[flow] = debt

    def remove(self, waiter: Waiter[T]) -> None:
        """``waiter`` gives up; those behind it are no worse off."""
        waiter.tier_queue.remove(waiter)
        self._removed(waiter)

    def _removed(self, waiter: Waiter[T]) -> None:
        self.size -= 1
        self.tokens -= waiter.tokens
        if not waiter.tier_queue.length:
            del self._tiers[waiter.tier_queue.tier]
        if not self.size:
            self._virtual_time = 0.0
            self._debts.clear()

    def tokens_ahead(self, waiter: Waiter[T]) -> int:
        """Tokens that are likely to be served before ``waiter``, if nobody else comes."""
        own = waiter.tenant.tokens_before(waiter)
        return self._ahead(
            waiter.tier_queue, waiter.tier_queue.terms, own, waiter.tenant.tokens, waiter.tokens
        )

    def tokens_ahead_of_new(self, tier: str, terms: QueueTerms, tenant: str, tokens: int) -> int:
        """As ``tokens_ahead``, for a request that would be queued now."""
        tier_queue = self._tiers.get(tier)
        tenant_queue = tier_queue.tenants.get(tenant) if tier_queue is not None else None
        own = tenant_queue.tokens if tenant_queue is not None else 0
        return self._ahead(tier_queue, terms, own, own, tokens)

    def waiters_of(self, tier: str, tenant: str) -> Sequence[Waiter[T]]:
        """One tenant's, in order."""
        tier_queue = self._tiers.get(tier)
        own = tier_queue.tenants.get(tenant) if tier_queue is not None else None
        return own.waiters if own is not None else ()

    def waiters(self) -> Iterator[Waiter[T]]:
        """All that wait, by tier and tenant."""
        for tier_queue in self._tiers.values():
            for tenant in tier_queue.tenants.values():
                yield from tenant.waiters

    def position(self, waiter: Waiter[T]) -> int:
        """1 is next. Exact among the tenant's own requests, estimated by tokens among the others."""
        others = self.tokens_ahead(waiter) - waiter.tenant.tokens_before(waiter)
        ahead = waiter.tenant.index(waiter) + round(others * self.size / self.tokens)
        return min(ahead + 1, self.size)

    def _ahead(
        self, tier_queue: _TierQueue[T] | None, terms: QueueTerms, own: int, backlog: int, tokens: int
    ) -> int:
        """In the fluid model: while ``own + tokens`` of a tenant are served, every other one in its tier gets as many
        at most, and every other tier as many as the weights give it.
        """
        ahead = own
        if tier_queue is not None:
            ahead += tier_queue.served_within(own + tokens) - min(backlog, own + tokens)
        tier_passes = (ahead + tokens) / terms.weight
        return ahead + sum(
            min(other.tokens, int(tier_passes * other.terms.weight))
            for other in self._tiers.values()
            if other is not tier_queue and other.terms.max_utilization >= terms.max_utilization
        )


@dataclass(slots=True, eq=False)
class _TierQueue(Generic[T]):
    """The queue of one tier. It is dropped when it is empty."""

    tier: str
    terms: QueueTerms
    start: float
    length: int = 0
    tokens: int = 0
    tenants: dict[str, _TenantQueue[T]] = field(default_factory=dict)
    virtual_time: float = 0.0
    order: list[tuple[float, int, _TenantQueue[T]]] = field(default_factory=list)
    """Each tenant once, by its ``key``; sorted."""
    backlogs: list[int] = field(default_factory=list)
    """The tenants' tokens, sorted."""

    @property
    def head(self) -> Waiter[T]:
        return self.order[0][2].waiters[0]

    def finish(self, now: float) -> float:
        head = self.head
        return self.start + head.tokens / (self.terms.weight * (1.0 + (now - head.since) / self.terms.ageing))

    def push(self, name: str, tokens: int, now: float, number: int, item: T, debt: float = 0.0) -> Waiter[T]:
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = _TenantQueue(name, self.virtual_time + debt)
        else:
            self._unlink(tenant)
        waiter = Waiter(item, tokens, now, number, self, tenant)
        tenant.waiters.append(waiter)
        tenant.token_counts.append(tokens)
        tenant.tokens += tokens
        self._link(tenant)
        self.length += 1
        self.tokens += tokens
        return waiter

    def correct(self, name: str, more: int) -> bool:
        """Whether the tenant has anything queued."""
        tenant = self.tenants.get(name)
        if tenant is None:
            return False
        self._unlink(tenant)
        tenant.start += more
        self._link(tenant)
        return True

    def serve(self, waiter: Waiter[T]) -> None:
        self.virtual_time = self.order[0][0]
        self.remove(waiter, self.virtual_time)

    def remove(self, waiter: Waiter[T], start: float | None = None) -> None:
        """``start`` is the tenant's new start tag, if it was served."""
        tenant = waiter.tenant
        self._unlink(tenant)
        if start is not None:
            tenant.start = start
        at = tenant.index(waiter)
        del tenant.waiters[at], tenant.token_counts[at]
        tenant.tokens -= waiter.tokens
        if tenant.waiters:
            self._link(tenant)
        else:
            del self.tenants[tenant.name]
        self.length -= 1
        self.tokens -= waiter.tokens

    def served_within(self, tokens: int) -> int:
        """Tokens served until each tenant has had ``tokens``, or all that it has queued."""
        small = bisect_right(self.backlogs, tokens)
        return sum(self.backlogs[:small]) + tokens * (len(self.backlogs) - small)

    def _link(self, tenant: _TenantQueue[T]) -> None:
        insort(self.order, tenant.key)
        insort(self.backlogs, tenant.tokens)

    def _unlink(self, tenant: _TenantQueue[T]) -> None:
        del self.order[bisect_left(self.order, tenant.key)]
        del self.backlogs[bisect_left(self.backlogs, tenant.tokens)]


@dataclass(slots=True, eq=False)
class _TenantQueue(Generic[T]):
    """One tenant's queue in a tier, first come first served. ``token_counts`` are those of ``waiters``."""

    name: str
    start: float
    waiters: list[Waiter[T]] = field(default_factory=list)
    token_counts: list[int] = field(default_factory=list)
    tokens: int = 0

    @property
    def key(self) -> tuple[float, int, _TenantQueue[T]]:
        """The finish tag and the number of the first waiter; numbers are unique, so that queues are never compared."""
        return self.start + self.token_counts[0], self.waiters[0].number, self

    def index(self, waiter: Waiter[T]) -> int:
        return bisect_left(self.waiters, waiter.number, key=_number)

    def tokens_before(self, waiter: Waiter[T]) -> int:
        return sum(self.token_counts[: self.index(waiter)])


def _number(waiter: Waiter[T]) -> int:
    return waiter.number
