"""Where whole answers are kept under the hash of their request: in this process, or in Redis."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from redis import asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

SECONDS_TO_ANSWER = 0.05
"""A server that is slower than this is left alone until it answers again."""
PROBE_EVERY = 0.25
CONNECTIONS = 16
"""At most: more answers are not found any sooner, and hundreds at once would be connecting rather than asking."""
OVERHEAD = 300
"""Bytes that an entry in memory takes beside its key and value."""
MOST_WAITING = 16 * 2**20
"""Bytes of answers on their way to Redis; beyond that they are not kept."""
MOST_EVICTIONS = 10_000
SECONDS_TO_FLUSH = 1.0


class Answers(Protocol):
    """Packed answers by key. Nothing here fails or waits for long: what cannot be read is not there."""

    async def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes, ttl: float) -> None:
        """Keep ``value`` for ``ttl`` seconds, in place of what was there."""
        ...

    def evict(self, key: str) -> None:
        """From here on ``get`` does not find what was there before."""
        ...

    async def aclose(self) -> None: ...


class MemoryAnswers:
    """The most recently used answers, up to ``max_bytes``. Each worker of a host has its own, and evicts
    from its own alone: those who want one cache for all take Redis.
    """

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
        return self.look(key)

    def look(self, key: str) -> bytes | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[1] <= self._clock():
            self.evict(key)
            return None
        self._entries.move_to_end(key)
        return entry[0]

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


class RedisAnswers:
    """``url`` is ``redis://[user:password@]host[:port]/[db]``, or ``rediss://`` for TLS.

    Puts and evictions are sent in the background, in their order. While the server is away nothing is found and
    nothing is kept; what was to be evicted meanwhile is evicted before anything is found again.
    """

    def __init__(self, url: str, *, prefix: str = "tollgate:answer:") -> None:
        pool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=None,  # those who wait for a connection have a time limit of their own
            socket_timeout=SECONDS_TO_ANSWER,
            socket_connect_timeout=SECONDS_TO_ANSWER,
            retry=Retry(NoBackoff(), 1),
        )
        self._redis = redis.Redis.from_pool(pool)
        self._prefix = prefix
        self._waiting: OrderedDict[str, tuple[bytes, float] | None] = OrderedDict()
        """What the server is to be told: an answer and its time to live, or None for an eviction."""
        self._bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._closed = False
        self.down = False

    async def get(self, key: str) -> bytes | None:
        if key in self._waiting:
            told = self._waiting[key]
            return told[0] if told is not None else None
        if self.down:
            return None
        try:
            async with asyncio.timeout(SECONDS_TO_ANSWER):
                value = await self._redis.get(self._prefix + key)
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            self._fail(error)
            return None
        # It may have been evicted while it was on its way.
        if key in self._waiting or not isinstance(value, bytes):
            return None
        return value

    def put(self, key: str, value: bytes, ttl: float) -> None:
        if self.down or self._closed or self._bytes + len(value) > MOST_WAITING:
            # An eviction of this key that the server has not heard of yet stands.
            return
        self._tell(key, (value, ttl))

    def evict(self, key: str) -> None:
        if not self._closed:
            self._tell(key, None)

    async def aclose(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_TO_FLUSH):
                while self._sending is not None and not self._sending.done() and not self.down:
                    await asyncio.wait([self._sending])
        self._closed = True
        tasks = [task for task in (self._sending, self._probing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        evictions = sum(told is None for told in self._waiting.values())
        if evictions:
            log.warning("Redis was away to the end: %d cached answers were not evicted there", evictions)
        await self._redis.aclose()

    def _tell(self, key: str, told: tuple[bytes, float] | None) -> None:
        self._forget(key)
        self._waiting[key] = told
        self._bytes += len(told[0]) if told is not None else 0
        if len(self._waiting) > MOST_EVICTIONS and self.down:
            oldest = next(iter(self._waiting))
            self._forget(oldest)
            log.error("Redis has been away for too long: a cached answer will not be evicted there")
        if not self.down and (self._sending is None or self._sending.done()):
            self._sending = asyncio.get_running_loop().create_task(self._send())

    def _forget(self, key: str) -> None:
        told = self._waiting.pop(key, None)
        if told is not None:
            self._bytes -= len(told[0])

    async def _send(self) -> None:
        while self._waiting:
            batch = dict(list(self._waiting.items())[:64])
            try:
                async with (
                    asyncio.timeout(SECONDS_TO_ANSWER * (1 + len(batch) // 8)),
                    self._redis.pipeline(transaction=False) as pipeline,
                ):
                    for key, told in batch.items():
                        if told is None:
                            pipeline.delete(self._prefix + key)
                        else:
                            pipeline.set(self._prefix + key, told[0], px=max(1, round(told[1] * 1000)))
                    await pipeline.execute()
            except (RedisError, OSError) as error:
                self._fail(error)
                return
            for key, told in batch.items():
                if key in self._waiting and self._waiting[key] is told:
                    self._forget(key)

    def _fail(self, error: Exception) -> None:
        # Whether the server took an answer is not known, and it may have come in place of an eviction.
        self._waiting = OrderedDict.fromkeys(self._waiting)
        self._bytes = 0
        if self.down or self._closed:
            return
        log.warning("cache: Redis did not answer: %s", str(error) or "it is too slow")
        self.down = True
        self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE_EVERY)
            gone = [key for key, told in self._waiting.items() if told is None]
            try:
                async with asyncio.timeout(4 * SECONDS_TO_ANSWER):
                    if gone:
                        await self._redis.delete(*(self._prefix + key for key in gone))
                    else:
                        await self._redis.ping()
            except (RedisError, OSError):
                continue
            for key in gone:
                self._forget(key)
            if not self._waiting:
                break
        self.down = False
        log.warning("cache: Redis answers again")
