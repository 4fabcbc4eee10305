"""The line in front of a backend: weighted fair queueing in two levels, tiers by weight and tenants by tokens.

Self-clocked fair queueing (Golestani, "A self-clocked fair queueing scheme for broadband applications", INFOCOM
1994): what is first in a flow is finished at the virtual time ``start + cost / weight``; the least such tag is served
next, and virtual time jumps to it. A flow that was idle starts at the present virtual time, so it saves nothing up.
While two flows both wait, what they are served in relation to their weights differs by no more than one request of
each. The flows are the tiers and, inside a tier, its tenants with equal weights. A tenant's requests keep their order.

A cost is an estimate. What a request that stood here really came to is told afterwards (``correct``), and changes the
account of its tier and its tenant, so that in the long run shares follow from what was used.

The queue is told the time and reads no clock. Costs are whole tokens, at least 1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_OWING = 10_000
"""Tiers and tenants."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a tier is treated. ``ageing`` is in seconds: a request that has waited so long counts twice its weight."""

    weight: float = 1.0
    ageing: float = float("inf")
    below: float = 1.0
    """It is served only while less than this share of the backend is taken; 1 is whenever there is room."""


@dataclass(slots=True, eq=False)
class Waiter(Generic[T]):
    """One request in line."""

    item: T
    cost: int
    since: float
    number: int
    lane: _Lane[T]
    tenant: _Tenant[T]


class FairQueue(Generic[T]):
    def __init__(self) -> None:
        self._lanes: dict[str, _Lane[T]] = {}
        self._virtual = 0.0
        self._numbers = count()
        self._length = 0
        self.cost = 0
        """Of all that wait, in tokens."""
        self._owed: dict[tuple[str, str], float] = {}
        """By tiers (with no tenant) and tenants that have nobody in line: what they used beyond their estimates."""

    def __len__(self) -> int:
        return self._length

    def length(self, tier: str) -> int:
        lane = self._lanes.get(tier)
        return lane.length if lane is not None else 0

    def push(self, tier: str, terms: Terms, tenant: str, cost: int, now: float, item: T) -> Waiter[T]:
        """Stand in line. ``terms`` hold from now on for all that wait in this tier."""
        lane = self._lanes.get(tier)
        if lane is None:
            lane = self._lanes[tier] = _Lane(tier, terms, self._virtual + self._owed.pop((tier, ""), 0.0))
        lane.terms = terms
        owed = self._owed.pop((tier, tenant), 0.0) if tenant not in lane.tenants else 0.0
        waiter = lane.push(tenant, cost, now, next(self._numbers), item, owed)
        self._length += 1
        self.cost += cost
        return waiter

    def renew(self, terms_of: Callable[[str], Terms]) -> None:
        """Other terms hold for all that wait, by tier."""
        for lane in self._lanes.values():
            lane.terms = terms_of(lane.tier)

    def head(self, now: float, taken: float = 0.0) -> Waiter[T] | None:
        """Who is next, with the share ``taken`` of the backend. Whoever does not fit yet must be waited for: to serve
        another first would let the small ones overtake a big one for ever.
        """
        best, least = None, float("inf")
        for lane in self._lanes.values():
            if lane.terms.below >= 1.0 or taken < lane.terms.below or not taken:
                finish = lane.finish(now)
                if finish < least:
                    best, least = lane, finish
        return None if best is None else best.head

    def take(self, waiter: Waiter[T], now: float) -> None:
        """``waiter``, which is the ``head``, is served."""
        lane = waiter.lane
        self._virtual = lane.start = max(self._virtual, lane.finish(now))
        lane.serve(waiter)
        self._left(waiter)

    def correct(self, tier: str, terms: Terms, tenant: str, more: int) -> None:
        """One that was served cost ``more`` than its estimate, or less.

        Who has nobody in line just now owes what was more, for as long as others stand here; what was less is
        forgotten with all else that an idle flow might save up.
        """
        if not more or not self._length:
            return
        lane = self._lanes.get(tier)
        if lane is not None:
            lane.start += more / lane.terms.weight
        else:
            self._owe((tier, ""), more / terms.weight)
        if lane is None or not lane.correct(tenant, more):
            self._owe((tier, tenant), more)

    def _owe(self, flow: tuple[str, str], more: float) -> None:
        owed = self._owed.get(flow, 0.0) + more
        if owed <= 0:
            self._owed.pop(flow, None)
        elif flow in self._owed or len(self._owed) < MOST_OWING:
            self._owed[flow] = owed

    def remove(self, waiter: Waiter[T]) -> None:
        """``waiter`` does not want to wait any longer, and leaves those behind it no worse off."""
        waiter.lane.remove(waiter)
        self._left(waiter)

    def _left(self, waiter: Waiter[T]) -> None:
        self._length -= 1
        self.cost -= waiter.cost
        if not waiter.lane.length:
            del self._lanes[waiter.lane.tier]
        if not self._length:
            self._virtual = 0.0
            self._owed.clear()

    def cost_ahead(self, waiter: Waiter[T]) -> int:
        """Tokens that are likely to be served before ``waiter``, if nobody else comes."""
        own = waiter.tenant.cost_before(waiter)
        return self._ahead(waiter.lane, waiter.lane.terms, own, waiter.tenant.cost, waiter.cost)

    def cost_ahead_of_new(self, tier: str, terms: Terms, tenant: str, cost: int) -> int:
        """As ``cost_ahead``, for a request that might come to stand in line now."""
        lane = self._lanes.get(tier)
        line = lane.tenants.get(tenant) if lane is not None else None
        own = line.cost if line is not None else 0
        return self._ahead(lane, terms, own, own, cost)

    def line(self, tier: str, tenant: str) -> Sequence[Waiter[T]]:
        """A tenant's own, first come first served."""
        lane = self._lanes.get(tier)
        line = lane.tenants.get(tenant) if lane is not None else None
        return line.line if line is not None else ()

    def position(self, waiter: Waiter[T]) -> int:
        """1 is next. An estimate: it knows the waiter's own line exactly, and the others by their tokens."""
        others = self.cost_ahead(waiter) - waiter.tenant.cost_before(waiter)
        ahead = waiter.tenant.index(waiter) + round(others * self._length / self.cost)
        return min(ahead + 1, self._length)

    def _ahead(self, lane: _Lane[T] | None, terms: Terms, own: int, backlog: int, cost: int) -> int:
        """Served as a fluid: while ``own + cost`` of a tenant passes, every other one in its tier gets as much at
        most, and every other tier as much as the weights say.
        """
        ahead = own
        if lane is not None:
            ahead += lane.served_within(own + cost) - min(backlog, own + cost)
        tier_passes = (ahead + cost) / terms.weight
        return ahead + sum(
            min(other.cost, int(tier_passes * other.terms.weight))
            for other in self._lanes.values()
            if other is not lane and other.terms.below >= terms.below
        )


@dataclass(slots=True, eq=False)
class _Lane(Generic[T]):
    """The line of one tier. It has at least one waiter, but for the moment of the first one's arrival."""

    tier: str
    terms: Terms
    start: float
    length: int = 0
    cost: int = 0
    tenants: dict[str, _Tenant[T]] = field(default_factory=dict)
    virtual: float = 0.0
    order: list[tuple[float, int, _Tenant[T]]] = field(default_factory=list)
    """Each tenant once, by the tag and the number of its first waiter; sorted."""
    backlogs: list[int] = field(default_factory=list)
    """The tenants' costs, sorted."""

    @property
    def head(self) -> Waiter[T]:
        return self.order[0][2].line[0]

    def finish(self, now: float) -> float:
        head = self.head
        return self.start + head.cost / (self.terms.weight * (1.0 + (now - head.since) / self.terms.ageing))

    def push(self, name: str, cost: int, now: float, number: int, item: T, owed: float = 0.0) -> Waiter[T]:
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = _Tenant(name, self.virtual + owed)
        else:
            self._forget(tenant)
        waiter = Waiter(item, cost, now, number, self, tenant)
        tenant.line.append(waiter)
        tenant.costs.append(cost)
        tenant.cost += cost
        self._enter(tenant)
        self.length += 1
        self.cost += cost
        return waiter

    def correct(self, name: str, more: int) -> bool:
        """Whether the tenant is here."""
        tenant = self.tenants.get(name)
        if tenant is None:
            return False
        self._forget(tenant)
        tenant.start += more
        self._enter(tenant)
        return True

    def serve(self, waiter: Waiter[T]) -> None:
        self.virtual = self.order[0][0]
        self.remove(waiter, self.virtual)

    def remove(self, waiter: Waiter[T], start: float | None = None) -> None:
        """``start`` is the tenant's new one, if it moves on."""
        tenant = waiter.tenant
        self._forget(tenant)
        if start is not None:
            tenant.start = start
        at = tenant.index(waiter)
        del tenant.line[at], tenant.costs[at]
        tenant.cost -= waiter.cost
        if tenant.line:
            self._enter(tenant)
        else:
            del self.tenants[tenant.name]
        self.length -= 1
        self.cost -= waiter.cost

    def served_within(self, cost: int) -> int:
        """Tokens that pass until each tenant has had ``cost`` of them, or all that it wants."""
        small = bisect_right(self.backlogs, cost)
        return sum(self.backlogs[:small]) + cost * (len(self.backlogs) - small)

    def _enter(self, tenant: _Tenant[T]) -> None:
        insort(self.order, tenant.entry)
        insort(self.backlogs, tenant.cost)

    def _forget(self, tenant: _Tenant[T]) -> None:
        del self.order[bisect_left(self.order, tenant.entry)]
        del self.backlogs[bisect_left(self.backlogs, tenant.cost)]


@dataclass(slots=True, eq=False)
class _Tenant(Generic[T]):
    """One tenant's line in a tier, first come first served. ``costs`` runs beside it, to be summed quickly."""

    name: str
    start: float
    line: list[Waiter[T]] = field(default_factory=list)
    costs: list[int] = field(default_factory=list)
    cost: int = 0

    @property
    def entry(self) -> tuple[float, int, _Tenant[T]]:
        # Numbers are unique, so that tenants themselves are never compared.
        return self.start + self.costs[0], self.line[0].number, self

    def index(self, waiter: Waiter[T]) -> int:
        return bisect_left(self.line, waiter.number, key=_number)

    def cost_before(self, waiter: Waiter[T]) -> int:
        return sum(self.costs[: self.index(waiter)])


def _number(waiter: Waiter[T]) -> int:
    return waiter.number
