"""Counters in a Redis Cluster, in parts: each is like a server of its own, that may be away or lose its data."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from gateway.quota.counters import ElasticRequest, QuotaDecision
from gateway.quota.limits import Amounts, Limits, Window
from gateway.quota.store_outage import FailoverCounters
from gateway.stores.redis_parts import part_of


class SpreadCounters:
    """``parts``: all limits of one caller are in the same one, by ``Limits.group``."""

    def __init__(self, parts: Sequence[FailoverCounters]) -> None:
        self._parts = tuple(parts)

    async def reserve(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        return await self._part(limits).reserve(request_id, limits, amounts, elastic)

    async def extend(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        return await self._part(limits).extend(request_id, limits, amounts, elastic)

    def settle(self, request_id: str, limits: Limits, used: Amounts) -> None:
        self._part(limits).settle(request_id, limits, used)

    @property
    def away(self) -> bool:
        """Whether no part answered when it was last asked."""
        return self.up == 0.0

    @property
    def up(self) -> float:
        """The share of parts that answered."""
        return sum(one.up for one in self._parts) / len(self._parts)

    @property
    def losses(self) -> int:
        return sum(one.losses for one in self._parts)

    def watch(self) -> None:
        for one in self._parts:
            one.watch()

    async def remember(self, used: Mapping[tuple[str, Window], int], groups: Mapping[str, str]) -> None:
        """Each part its own."""
        shares: list[dict[tuple[str, Window], int]] = [{} for _ in self._parts]
        for name, amount in used.items():
            part_of(groups[name[0]], shares)[name] = amount
        await asyncio.gather(
            *(one.remember(share, groups) for one, share in zip(self._parts, shares, strict=True))
        )

    def restore_from(
        self, recorded: Callable[[], Awaitable[Mapping[str, int] | None]] | None, groups: Mapping[str, str]
    ) -> None:
        """Several parts may lose their data at once, with their server: they share a reading."""
        reading = None if recorded is None else _Shared(recorded)
        for one in self._parts:
            one.restore_from(None if reading is None else partial(self._of, one, reading, groups), groups)

    async def aclose(self) -> None:
        await asyncio.gather(*(one.aclose() for one in self._parts))

    def _part(self, limits: Limits) -> FailoverCounters:
        return part_of(limits.group, self._parts)

    async def _of(
        self, part: FailoverCounters, reading: _Shared, groups: Mapping[str, str]
    ) -> Mapping[str, int] | None:
        """Of what is recorded, this part's."""
        recorded = await reading.read()
        if recorded is None:
            return None
        return {key: amount for key, amount in recorded.items() if part_of(groups[key], self._parts) is part}


class _Shared:
    """Who asks while it is being read gets the next reading: this one may have begun before what it is to know."""

    def __init__(self, read: Callable[[], Awaitable[Mapping[str, int] | None]]) -> None:
        self._read = read
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[Mapping[str, int] | None] | None = None

    async def read(self) -> Mapping[str, int] | None:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._begin())
        return await asyncio.shield(self._next)

    async def _begin(self) -> Mapping[str, int] | None:
        async with self._turn:
            self._next = None
            return await self._read()
