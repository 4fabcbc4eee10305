"""Sums that workers and replicas keep together: each addition is told the sum after it, so that one of them sees each
mark passed, and one is the first."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from gateway.stores.outage_log import OutageLog
from gateway.stores.redis_link import RedisLink
from gateway.stores.redis_parts import by_part, prefixes

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline

TIMEOUT = 1.0
"""Seconds after which the server counts as down."""
MAX_ENTRIES = 100_000
PREFIX = "tollgate:tally:"


class Tally(Protocol):
    async def add(self, amounts: Mapping[str, int], ttl: float) -> dict[str, int]:
        """The sums after ``amounts`` were added; each is forgotten ``ttl`` seconds after the last addition to it.

        Raises ``StoreDown``; some may have been added then.
        """
        ...

    async def aclose(self) -> None: ...


class MemoryTally:
    """This process's own. The least recently changed make way."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sums: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._clock = clock

    async def add(self, amounts: Mapping[str, int], ttl: float) -> dict[str, int]:
        now = self._clock()
        sums = {}
        for key, amount in amounts.items():
            before, until = self._sums.get(key, (0, 0.0))
            sums[key] = amount + (before if until > now else 0)
            self._sums[key] = (sums[key], now + ttl)
            self._sums.move_to_end(key)
        while len(self._sums) > MAX_ENTRIES:
            self._sums.popitem(last=False)
        return sums

    async def aclose(self) -> None:
        self._sums.clear()


class RedisTally:
    """``url`` as for ``RedisLink``. In a cluster sums spread over its parts."""

    def __init__(self, url: str, *, prefix: str = PREFIX) -> None:
        places = prefixes(url, "tally", prefix)
        told = OutageLog("callbacks", "each worker tells its own", parts=len(places))
        self._links = [RedisLink(url, told, prefix=one) for one in places]

    async def add(self, amounts: Mapping[str, int], ttl: float) -> dict[str, int]:
        milliseconds = max(1, round(ttl * 1000))

        async def ask(link: RedisLink, keys: Sequence[str]) -> dict[str, int]:
            def fill(pipeline: Pipeline) -> None:
                for key in keys:
                    pipeline.incrby(link.prefix + key, amounts[key])
                    pipeline.pexpire(link.prefix + key, milliseconds)

            answers = (await link.pipeline(fill, TIMEOUT))[::2]
            return {key: answer for key, answer in zip(keys, answers, strict=True) if isinstance(answer, int)}

        shares = by_part(amounts, self._links)
        found = await asyncio.gather(*(ask(self._links[part], keys) for part, keys in shares.items()))
        return {key: answer for one in found for key, answer in one.items()}

    async def aclose(self) -> None:
        await asyncio.gather(*(link.aclose() for link in self._links))
