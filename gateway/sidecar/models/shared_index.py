"""Entries of the semantic cache in Redis, so that replicas share them and a restart keeps them.

A partition is a stream. Each entry is a message in it, and so is each key that was forgotten; every replica reads on
from the last message it saw. Redis that is away costs at most ``SECONDS_TO_ANSWER`` once every ``SECONDS_AWAY``:
what is known here goes on serving, and what is added meanwhile stays here.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
from redis import asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.sidecar.models.entries import Entry

log = logging.getLogger(__name__)

T = TypeVar("T")

SECONDS_TO_ANSWER = 0.05
SECONDS_AWAY = 1.0
"""After Redis failed, it is left alone for so long."""
SECONDS_BETWEEN = 0.05
"""A partition is read anew at most so often."""
_MESSAGES = 500
"""Read at once; the rest with the next look-up."""
_PARTITIONS = 10_000
"""Whose place is remembered; another is read from its beginning again."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A key that some replica forgot."""

    key: str


@dataclass(slots=True)
class _Place:
    last: bytes = b"0"
    read: float = float("-inf")


class Shared:
    """``url`` as for the gateway's store. Never raises: without Redis there is nothing new."""

    def __init__(
        self, url: str, *, max_entries: int, clock: Callable[[], float], prefix: str = "tollgate:semantic:"
    ) -> None:
        self._prefix = prefix
        self._max_entries = max_entries
        self._clock = clock
        self._origin = uuid.uuid4().hex.encode()
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._away_until = float("-inf")
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=SECONDS_TO_ANSWER,
            socket_connect_timeout=SECONDS_TO_ANSWER,
            retry=Retry(NoBackoff(), 0),
        )

    async def news(self, partition: str) -> Sequence[Entry | Forgotten]:
        """What was said in a partition since it was last read, but for this replica's own entries."""
        place = self._places.setdefault(partition, _Place())
        self._places.move_to_end(partition)
        if len(self._places) > _PARTITIONS:
            self._places.popitem(last=False)
        now = asyncio.get_running_loop().time()
        if now - place.read < SECONDS_BETWEEN:
            return ()
        place.read = now
        found: Any = await self._try(
            lambda: self._redis.xread({self._name(partition): place.last}, count=_MESSAGES)
        )
        if not found:
            return ()
        messages = found[0][1] if isinstance(found, list) else next(iter(found.values()))[0]
        if len(messages) == _MESSAGES:
            place.read = float("-inf")
        place.last = messages[-1][0]
        parsed = (self._parse(partition, *message) for message in messages)
        return [item for item in parsed if item is not None]

    async def tell(self, entry: Entry) -> None:
        """Let the other replicas have an entry."""
        name = self._name(entry.partition)
        milliseconds = max(1, round((entry.expires - self._clock()) * 1000))
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.xadd(
            name,
            {
                "origin": self._origin,
                "question": entry.question.encode(errors="surrogatepass"),
                "vector": entry.vector.astype("<f2").tobytes(),
                "payload": entry.payload,
                "key": entry.key,
                "stored": repr(entry.stored),
                "expires": repr(entry.expires),
            },
            maxlen=self._max_entries,
            approximate=True,
        )
        # The stream lives as long as its longest-lived entry.
        pipeline.pexpire(name, milliseconds, nx=True)
        pipeline.pexpire(name, milliseconds, gt=True)
        done = await self._try(pipeline.execute)
        if done:
            entry.message = done[0]

    async def forget(self, partition: str, key: str, ids: Sequence[bytes]) -> None:
        """Have all replicas forget a key. ``ids``: the messages of its entries, as far as they are known."""
        name = self._name(partition)
        pipeline = self._redis.pipeline(transaction=False)
        # Only where there is a stream: nobody else knows of the key otherwise.
        pipeline.xadd(name, {"origin": self._origin, "forget": key}, nomkstream=True)
        if ids:
            pipeline.xdel(name, *ids)
        await self._try(pipeline.execute)

    async def aclose(self) -> None:
        await self._redis.aclose()

    def _name(self, partition: str) -> str:
        return self._prefix + blake2b(partition.encode(errors="surrogatepass"), digest_size=20).hexdigest()

    def _parse(
        self, partition: str, message: bytes, fields: Mapping[bytes, bytes]
    ) -> Entry | Forgotten | None:
        """None for this replica's own entries, and for what another version wrote."""
        try:
            if b"forget" in fields:  # its own too: it may have read the entry only now
                return Forgotten(fields[b"forget"].decode())
            if fields[b"origin"] == self._origin:
                return None
            vector = np.frombuffer(fields[b"vector"], dtype="<f2").astype(np.float32)
            return Entry(
                partition,
                fields[b"question"].decode(errors="surrogatepass"),
                vector / max(float(np.linalg.norm(vector)), 1e-6),
                fields[b"payload"],
                fields[b"key"].decode(),
                float(fields[b"stored"]),
                float(fields[b"expires"]),
                message,
            )
        except (KeyError, ValueError):
            return None

    async def _try(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """What Redis answers, or None when it is away."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._away_until:
            return None
        try:
            async with asyncio.timeout(SECONDS_TO_ANSWER):
                answer = await ask()
        except (RedisError, OSError) as error:  # a timeout is an OSError
            if self._away_until == float("-inf"):
                log.warning("the semantic cache goes on without Redis: %s", str(error) or "it is too slow")
            self._away_until = loop.time() + SECONDS_AWAY
            return None
        self._away_until = float("-inf")
        return answer
