"""Limits while the store is away: each process goes on with its share of what was left when it was last heard of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.quota.counters import Elastic, Verdict
from gateway.quota.known import Known
from gateway.quota.limits import Amounts, Limit, Limits
from gateway.quota.memory import MemoryCounters


class Share:
    """Counters for one absence of the store, in memory.

    Where N processes share it, each lets in one part in N of every limit, and counts one part in N of what was known to
    be used or held: together they let in what was left, whoever is asked. One request a minute, and one answer at
    once, is let in by each at least.
    """

    def __init__(self, known: Known, clock: Callable[[], float]) -> None:
        self._known = known
        self._memory = MemoryCounters(clock=clock)
        self._parts = max(1, known.gateways)
        self._limits: dict[Limits, Limits] = {}
        self._begun: set[str] = set()

    async def reserve(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: Elastic | None = None
    ) -> Verdict:
        return self._told(limits, self._memory.reserve_now(request_id, self._mine(limits), amounts, elastic))

    async def extend(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: Elastic | None = None
    ) -> Verdict:
        verdict = await self._memory.extend(request_id, self._mine(limits), amounts, elastic)
        return self._told(limits, verdict)

    def settle(self, request_id: str, limits: Limits, used: Amounts) -> None:
        self._memory.settle(request_id, self._mine(limits), used)

    def occupy(self, request_id: str, limits: Limits, answers: int) -> None:
        """A request that the store let in has its places here, too, until it is settled."""
        if places := _places(limits):
            unlimited = Limits(tuple(replace(limit, maximum=2**62) for limit in places.each))
            self._memory.reserve_now(_guest(request_id), unlimited, Amounts(0, 0, 0, answers))

    def leave(self, request_id: str, limits: Limits) -> None:
        if places := _places(limits):
            self._memory.settle(_guest(request_id), places, Amounts(0, 0, 0))

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
        """With its part of what is known to be used."""
        if limit.key not in self._begun:
            self._begun.add(limit.key)
            heard = self._known.get(limit.key)
            if heard is not None and heard.counts > 0:
                self._memory.begin(limit.key, limit.window, -(-heard.counts // self._parts), heard.at)

    def _told(self, limits: Limits, verdict: Verdict) -> Verdict:
        """In the terms of the whole limits: what is not this process's share is used."""
        mine = self._mine(limits)
        used = tuple(
            count + whole.maximum - part.maximum
            for count, whole, part in zip(verdict.used, limits.each, mine.each, strict=False)
        )
        return verdict._replace(used=used)


def _places(limits: Limits) -> Limits | None:
    each = tuple(limit for limit in limits.each if limit.window == "now")
    return Limits(each) if each else None


def _guest(request_id: str) -> str:
    """Apart from what the same request may be given here besides."""
    return f"store:{request_id}"
