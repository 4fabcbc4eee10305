"""Limits while the store is down: each process enforces its share of what was left at the last known state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.quota.counters import ElasticRequest, QuotaDecision
from gateway.quota.last_known import LastKnown
from gateway.quota.limits import Amounts, Limit, Limits, Window
from gateway.quota.memory import MemoryCounters


class LocalShare:
    """Counters in memory, for one outage of the store.

    Where N processes share the store, each admits 1/N of every limit, and counts 1/N of the last known usage and
    reservations: together they admit what was left. Each admits at least one request a minute and one answer at a time.
    """

    def __init__(self, known: LastKnown, clock: Callable[[], float]) -> None:
        self._known = known
        self._memory = MemoryCounters(clock=clock)
        self._parts = max(1, known.gateways)
        self._limits: dict[Limits, Limits] = {}
        self._begun: set[str] = set()

    async def reserve(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        decision = self._memory.reserve_now(request_id, self._mine(limits), amounts, elastic)
        return self._as_whole(limits, decision, amounts if elastic is None else elastic.elastic.least)

    async def extend(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        decision = await self._memory.extend(request_id, self._mine(limits), amounts, elastic)
        return self._as_whole(limits, decision, amounts if elastic is None else elastic.elastic.least)

    def settle(self, request_id: str, limits: Limits, used: Amounts) -> None:
        self._memory.settle(request_id, self._mine(limits), used)

    def occupy(self, request_id: str, limits: Limits, answers: int) -> None:
        """A request that the store admitted takes its slots here, too, until it is settled."""
        if concurrent := _concurrent(limits):
            unlimited = Limits(tuple(replace(limit, maximum=2**62) for limit in concurrent.each))
            self._memory.reserve_now(_guest(request_id), unlimited, Amounts(0, 0, 0, answers))

    def release(self, request_id: str, limits: Limits) -> None:
        if concurrent := _concurrent(limits):
            self._memory.settle(_guest(request_id), concurrent, Amounts(0, 0, 0))

    def remember(self, key: str, window: Window, used: int) -> None:
        """So much of the whole limit had been used at least when it came back into force."""
        if key in self._begun:
            self._memory.remember(key, window, -(-used // self._parts))

    def _mine(self, limits: Limits) -> Limits:
        mine = self._limits.get(limits)
        if mine is None:
            each = tuple(replace(limit, maximum=self._part(limit)) for limit in limits.each)
            mine = self._limits[limits] = replace(limits, each=each)
            for limit in each:
                self._begin(limit)
        return mine

    def _part(self, limit: Limit) -> int:
        part = limit.maximum // self._parts
        return max(1, part) if limit.quantity in ("requests", "concurrent") else part

    def _begin(self, limit: Limit) -> None:
        """Start with its part of the last known usage."""
        if limit.key not in self._begun:
            self._begun.add(limit.key)
            snapshot = self._known.get(limit.key)
            if snapshot is not None and snapshot.counts > 0:
                self._memory.begin(limit.key, limit.window, -(-snapshot.counts // self._parts), snapshot.at)

    def _as_whole(self, limits: Limits, decision: QuotaDecision, least: Amounts) -> QuotaDecision:
        """In terms of the whole limits: what is not this process's share counts as used. Of a day or month of which
        others have some left nobody waits for the end: the store is back before."""
        mine = self._mine(limits)
        used = tuple(
            count + whole.maximum - part.maximum
            for count, whole, part in zip(decision.used, limits.each, mine.each, strict=False)
        )
        wait = decision.wait
        if wait is not None and decision.refused >= 0:
            limit = limits.each[decision.refused]
            snapshot = self._known.get(limit.key)
            left = limit.maximum - (snapshot.counts if snapshot is not None else 0)
            if limit.window in ("day", "month") and limit.amount(least) <= left:
                wait = None
        return decision._replace(used=used, wait=wait)


def _concurrent(limits: Limits) -> Limits | None:
    each = tuple(limit for limit in limits.each if limit.window == "now")
    return Limits(each) if each else None


def _guest(request_id: str) -> str:
    """Distinct from what the same request may reserve here in addition."""
    return f"store:{request_id}"
