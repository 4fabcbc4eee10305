"""Where whole answers are stored under the hash of their request: in this process, or in Redis."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from gateway.stores.outage_log import OutageLog
from gateway.stores.redis_link import RedisLink
from gateway.stores.redis_parts import part_of, prefixes
from gateway.stores.store import StoreDown

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline

log = logging.getLogger(__name__)

PREFIX = "tollgate:answer:"
TIMEOUT = 0.05
"""Seconds after which the server counts as down."""
BATCH = 64
"""Commands in one round trip."""
OVERHEAD = 300
"""Bytes that an entry in memory takes beside its key and value."""
MOST_UNSENT = 16 * 2**20
"""Bytes of answers on their way to Redis; beyond that they are not cached."""
MOST_EVICTIONS = 10_000
SECONDS_TO_FLUSH = 1.0


class AnswerStore(Protocol):
    """Packed answers by key. Nothing here fails or waits for long: what cannot be read is a miss."""

    async def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes, ttl: float) -> None:
        """Store ``value`` for ``ttl`` seconds, replacing what was there."""
        ...

    def evict(self, key: str) -> None:
        """From now on ``get`` does not find what was there."""
        ...

    async def aclose(self) -> None: ...


class MemoryAnswerStore:
    """The most recently used answers, up to ``max_bytes``. Each worker has its own; Redis is one cache for all."""

    def __init__(self, max_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._max_bytes = max_bytes
        self._clock = clock
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def resize(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._shrink()

    async def get(self, key: str) -> bytes | None:
        return self.get_now(key)

    def get_now(self, key: str) -> bytes | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[1] <= self._clock():
            self.evict(key)
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def peek(self, key: str) -> bytes | None:
        """As ``get_now``, for who does not use it: the order of use stays."""
        entry = self._entries.get(key)
        return None if entry is None or entry[1] <= self._clock() else entry[0]

    def put(self, key: str, value: bytes, ttl: float) -> None:
        self.evict(key)
        self._entries[key] = (value, self._clock() + ttl)
        self.bytes += len(key) + len(value) + OVERHEAD
        self._shrink()

    def evict(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= len(key) + len(entry[0]) + OVERHEAD

    async def aclose(self) -> None:
        self._entries.clear()
        self.bytes = 0

    def _shrink(self) -> None:
        while self.bytes > self._max_bytes:
            self.evict(next(iter(self._entries)))


def outage_log(parts: int = 1) -> OutageLog:
    return OutageLog("cache", "requests are answered without it", parts=parts)


class RedisAnswerStore:
    """``url`` as for ``RedisLink``; of a cluster these are the answers of one part, whose hash tag ``prefix`` has.

    Puts and evictions are sent in the background, in their order. While the server is down nothing is found or
    stored; evictions requested meanwhile are made before anything is found again.
    """

    def __init__(self, url: str, *, prefix: str = PREFIX, told: OutageLog | None = None) -> None:
        """``told``: what the parts of a cluster share."""
        self._link = RedisLink(
            url, told or outage_log(), prefix=prefix, on_down=self._drop_unsent, recover=self._recover
        )
        self._prefix = prefix
        self._unsent: OrderedDict[str, tuple[bytes, float] | None] = OrderedDict()
        """An answer and its time to live, or None for an eviction."""
        self._bytes = 0
        self._sending: asyncio.Task[None] | None = None

    @property
    def down(self) -> bool:
        return self._link.down

    async def get(self, key: str) -> bytes | None:
        if key in self._unsent:
            unsent = self._unsent[key]
            return unsent[0] if unsent is not None else None
        try:
            value = await self._link.ask(lambda client: client.get(self._prefix + key), TIMEOUT)
        except StoreDown:
            return None
        # It may have been evicted while it was in transit.
        if key in self._unsent or not isinstance(value, bytes):
            return None
        return value

    def put(self, key: str, value: bytes, ttl: float) -> None:
        # While the server is down, an unsent eviction of this key must not be replaced.
        if not self._link.down and not self._link.closed and self._bytes + len(value) <= MOST_UNSENT:
            self._queue(key, (value, ttl))

    def evict(self, key: str) -> None:
        if not self._link.closed:
            self._queue(key, None)

    async def aclose(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_TO_FLUSH):
                while self._sending is not None and not self._sending.done() and not self._link.down:
                    await asyncio.wait([self._sending])
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        if evictions := self._evictions():
            log.warning("Redis was down to the end: %d cached answers were not evicted there", len(evictions))
        await self._link.aclose()

    def _queue(self, key: str, unsent: tuple[bytes, float] | None) -> None:
        self._remove(key)
        self._unsent[key] = unsent
        self._bytes += len(unsent[0]) if unsent is not None else 0
        if len(self._unsent) > MOST_EVICTIONS and self._link.down:
            self._remove(next(iter(self._unsent)))
            log.error("Redis has been down for too long: a cached answer will not be evicted there")
        if not self._link.down and (self._sending is None or self._sending.done()):
            self._sending = asyncio.get_running_loop().create_task(self._send())

    def _remove(self, key: str) -> None:
        unsent = self._unsent.pop(key, None)
        if unsent is not None:
            self._bytes -= len(unsent[0])

    def _evictions(self) -> list[str]:
        return [key for key, unsent in self._unsent.items() if unsent is None]

    async def _send(self) -> None:
        while self._unsent:
            batch = dict(islice(self._unsent.items(), BATCH))

            def fill(pipeline: Pipeline, batch: Mapping[str, tuple[bytes, float] | None] = batch) -> None:
                for key, unsent in batch.items():
                    if unsent is None:
                        pipeline.delete(self._prefix + key)
                    else:
                        pipeline.set(self._prefix + key, unsent[0], px=max(1, round(unsent[1] * 1000)))

            try:
                await self._link.pipeline(fill, TIMEOUT * (1 + len(batch) // 8))
            except StoreDown:
                return
            for key, unsent in batch.items():
                if key in self._unsent and self._unsent[key] is unsent:
                    self._remove(key)

    def _drop_unsent(self, _: Exception) -> None:
        # Whether the server stored an answer is not known, and it may have replaced an eviction.
        self._unsent = OrderedDict.fromkeys(self._unsent)
        self._bytes = 0

    async def _recover(self) -> None:
        """Make the evictions that the server has missed, and those that come meanwhile."""
        await self._link.write_probe()
        while gone := self._evictions():
            names = [self._prefix + key for key in gone]
            await self._link.ask(lambda client: client.delete(*names), 4 * TIMEOUT, probing=True)  # noqa: B023
            for key in gone:
                self._remove(key)


class SpreadAnswerStore:
    """Answers in a Redis Cluster: a part whose server is away has nothing, and the others go on."""

    def __init__(self, parts: Sequence[RedisAnswerStore]) -> None:
        self._parts = tuple(parts)

    async def get(self, key: str) -> bytes | None:
        return await part_of(key, self._parts).get(key)

    def put(self, key: str, value: bytes, ttl: float) -> None:
        part_of(key, self._parts).put(key, value, ttl)

    def evict(self, key: str) -> None:
        part_of(key, self._parts).evict(key)

    async def aclose(self) -> None:
        await asyncio.gather(*(one.aclose() for one in self._parts))


def open_redis_answers(url: str) -> AnswerStore:
    places = prefixes(url, "answer", PREFIX)
    told = outage_log(len(places))
    parts = [RedisAnswerStore(url, prefix=prefix, told=told) for prefix in places]
    return SpreadAnswerStore(parts) if len(parts) > 1 else parts[0]
