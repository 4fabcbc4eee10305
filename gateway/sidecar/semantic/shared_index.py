"""Entries of the semantic cache in Redis, so that replicas share them and a restart keeps them.

A partition is a stream. Each entry is a message in it, and so is each key that was forgotten; every replica reads on
from the last message it saw. While Redis is down the entries known here go on serving, and what is added meanwhile
stays here.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from redis.asyncio.client import Pipeline

from gateway.sidecar.semantic.entries import IndexEntry
from gateway.stores.redis_link import RedisLink
from gateway.stores.store import StoreDown

TIMEOUT = 0.05
"""Seconds after which the server counts as down."""
SECONDS_BETWEEN = 0.05
"""A partition is read anew at most so often."""
_MESSAGES = 500
"""Read at once; the rest with the next look-up."""
_PARTITIONS = 10_000
"""Whose position is remembered; another is read from its beginning again."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A key that some replica forgot."""

    key: str


@dataclass(slots=True)
class _Position:
    last: bytes = b"0"
    read: float = float("-inf")


class SharedIndex:
    """``url`` as for the gateway's store. Never raises: without Redis there is nothing new."""

    def __init__(
        self, url: str, *, max_entries: int, clock: Callable[[], float], prefix: str = "tollgate:semantic:"
    ) -> None:
        self._prefix = prefix
        self._max_entries = max_entries
        self._clock = clock
        self._origin = uuid.uuid4().hex.encode()
        self._positions: OrderedDict[str, _Position] = OrderedDict()
        self._link = RedisLink(url, "semantic cache")

    async def updates(self, partition: str) -> Sequence[IndexEntry | Removal]:
        """What was added to or forgotten of a partition since it was last read, but for this replica's own entries."""
        position = self._positions.setdefault(partition, _Position())
        self._positions.move_to_end(partition)
        if len(self._positions) > _PARTITIONS:
            self._positions.popitem(last=False)
        now = asyncio.get_running_loop().time()
        if now - position.read < SECONDS_BETWEEN:
            return ()
        position.read = now
        since: Any = {self._name(partition): position.last}
        try:
            found: Any = await self._link.ask(lambda client: client.xread(since, count=_MESSAGES), TIMEOUT)
        except StoreDown:
            return ()
        if not found:
            return ()
        messages = found[0][1] if isinstance(found, list) else next(iter(found.values()))[0]
        if len(messages) == _MESSAGES:
            position.read = float("-inf")
        position.last = messages[-1][0]
        parsed = (self._parse(partition, *message) for message in messages)
        return [item for item in parsed if item is not None]

    async def publish(self, entry: IndexEntry) -> None:
        """Send an entry to the other replicas."""
        name = self._name(entry.partition)
        milliseconds = max(1, round((entry.expires - self._clock()) * 1000))
        fields = {
            "origin": self._origin,
            "question": entry.question.encode(errors="surrogatepass"),
            "vector": entry.vector.astype("<f2").tobytes(),
            "payload": entry.payload,
            "key": entry.key,
            "stored": repr(entry.stored),
            "expires": repr(entry.expires),
        }

        def fill(pipeline: Pipeline) -> None:
            pipeline.xadd(name, fields, maxlen=self._max_entries, approximate=True)  # type: ignore[arg-type]
            # The stream lives as long as its longest-lived entry.
            pipeline.pexpire(name, milliseconds, nx=True)
            pipeline.pexpire(name, milliseconds, gt=True)

        with suppress(StoreDown):
            message, *_ = await self._link.pipeline(fill, TIMEOUT)
            entry.message = message if isinstance(message, bytes) else None

    async def forget(self, partition: str, key: str, ids: Sequence[bytes]) -> None:
        """Have all replicas forget a key. ``ids``: the messages of its entries, as far as they are known."""
        name = self._name(partition)

        def fill(pipeline: Pipeline) -> None:
            # Only where there is a stream: nobody else knows of the key otherwise.
            pipeline.xadd(name, {"origin": self._origin, "forget": key}, nomkstream=True)
            if ids:
                pipeline.xdel(name, *ids)

        with suppress(StoreDown):
            await self._link.pipeline(fill, TIMEOUT)

    async def aclose(self) -> None:
        await self._link.aclose()

    def _name(self, partition: str) -> str:
        return self._prefix + blake2b(partition.encode(errors="surrogatepass"), digest_size=20).hexdigest()

    def _parse(
        self, partition: str, message: bytes, fields: Mapping[bytes, bytes]
    ) -> IndexEntry | Removal | None:
        """None for this replica's own entries, and for what another version wrote."""
        try:
            if b"forget" in fields:  # its own too: it may have read the entry only now
                return Removal(fields[b"forget"].decode())
            if fields[b"origin"] == self._origin:
                return None
            vector = np.frombuffer(fields[b"vector"], dtype="<f2").astype(np.float32)
            return IndexEntry(
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
