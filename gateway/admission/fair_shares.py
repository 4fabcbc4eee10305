"""Each tenant's fair share of a learnt limit, which is its own whoever holds the rest.

A learnt limit is a guess from latency, and a queue in front of it is fair only while slots come free: answers that stay
open for minutes would keep all others out, however the queue orders them. So what a tenant holds beyond its share does
not count against the others: they are admitted up to theirs, and the backend has more in flight than the limit for as
long as those answers last, a known price of work conservation without preemption. (Netflix's concurrency-limits
guarantees its partitions a part of the limit in the same way.) By weight between tiers, equally inside one, as the
queue has it; those with nothing in flight have no part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Flow(NamedTuple):
    """What has a share: one tenant of one tier."""

    tier: str
    tenant: str
    weight: float
    """The tier's."""


class Holder(Protocol):
    @property
    def flow(self) -> Flow: ...

    @property
    def unfinished(self) -> int:
        """Slots that it holds."""
        ...


class FairShares:
    """Who holds how many slots of one backend."""

    def __init__(self, holders: Iterable[Holder]) -> None:
        self._held: dict[str, dict[str, int]] = {}
        self._weights: dict[str, float] = {}
        for holder in holders:
            self.add(holder.flow, holder.unfinished)

    def add(self, flow: Flow, slots: int) -> None:
        """``slots`` more; or fewer, where negative."""
        tenants = self._held.setdefault(flow.tier, {})
        self._weights[flow.tier] = flow.weight
        held = tenants.get(flow.tenant, 0) + slots
        if held > 0:
            tenants[flow.tenant] = held
            return
        tenants.pop(flow.tenant, None)
        if not tenants:
            del self._held[flow.tier], self._weights[flow.tier]

    def allow(self, flow: Flow, slots: int, *, limit: int, in_flight: int) -> bool:
        """Whether so many more are within the flow's share. One of a flow that has none may always be, until twice the
        limit is in flight."""
        held = self._held.get(flow.tier, {}).get(flow.tenant, 0)
        return held + slots <= self._share(flow, limit) or (not held and in_flight < 2 * limit)

    def utilization(self, flow: Flow, limit: int) -> float:
        """The part of ``limit`` that is in use as this flow sees it: what others hold within their shares."""
        seen = 0.0
        for tier, tenants in self._held.items():
            for tenant, held in tenants.items():
                own = tier == flow.tier and tenant == flow.tenant
                share = self._share(flow, limit, Flow(tier, tenant, self._weights[tier]))
                seen += held if own else min(held, share)
        return min(1.0, seen / limit)

    def _share(self, flow: Flow, limit: int, of: Flow | None = None) -> float:
        """In slots, ``of`` this flow or another, while ``flow`` takes part."""
        of = of or flow
        weights, tenants = sum(self._weights.values()), len(self._held.get(of.tier, ()))
        if flow.tier not in self._held:
            weights += flow.weight
        if of.tier == flow.tier and flow.tenant not in self._held.get(flow.tier, ()):
            tenants += 1
        return limit * of.weight / weights / max(1, tenants)
