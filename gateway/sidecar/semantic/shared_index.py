"""Entries of the semantic cache in Redis, so that replicas share them and a restart keeps them.

A partition is a stream. Each entry is a message in it, and so is each key that was removed; every replica reads on from
the last message it saw. While Redis is down the entries known here are still served, and what is added meanwhile
stays here. All partitions together keep to ``max_bytes``, and expired messages are removed as others are added.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
from redis import asyncio as redis
from redis.exceptions import NoScriptError

from gateway.sidecar.semantic.entries import IndexEntry
from gateway.stores.outage_log import OutageLog
from gateway.stores.redis_link import RedisLink
from gateway.stores.redis_parts import part_of, prefixes
from gateway.stores.script import Script
from gateway.stores.store import StoreDown

PREFIX = "{tollgate}:semantic:"
TIMEOUT = 1.0
"""Seconds after which the server counts as down: messages may be large."""
SECONDS_TO_WAIT = 0.05
"""A look-up waits no longer for what is new; reading goes on in the background, for the next one."""
SECONDS_BETWEEN = 0.05
"""A partition is read again after this time at the earliest."""
BATCH_BYTES = 2**20
"""Messages are read in batches of about this size,"""
BATCH = 500
"""and no more than this number."""
FIRST_BATCH = 16
"""Messages in the first batch of a partition, whose sizes are not known yet."""
MOST_UNREAD = 16 * 2**20
"""Bytes that reading in the background keeps for the next look-up, which then continues it."""
_PARTITIONS = 10_000
"""Whose position is remembered; another is read from its beginning again."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A key that some replica forgot."""

    key: str


@dataclass(slots=True)
class _Position:
    """How far a partition was read."""

    last: bytes = b"0"
    read: float = float("-inf")
    """When it was read to its end."""
    unread: list[IndexEntry | Removal] = field(default_factory=list)
    """Read from Redis, and not yet by a look-up."""
    unread_bytes: int = 0
    reading: asyncio.Task[None] | None = None


def outage_log(parts: int = 1) -> OutageLog:
    return OutageLog("semantic cache", "each sidecar finds its own answers alone", parts=parts)


class SharedIndex:
    """``url`` as for the gateway's store; of a cluster this is one part, whose hash tag ``prefix`` has. Never raises:
    without Redis there is nothing new."""

    def __init__(
        self,
        url: str,
        *,
        max_bytes: int,
        max_entries: int,
        clock: Callable[[], float],
        prefix: str = PREFIX,
        space: str = "",
        told: OutageLog | None = None,
    ) -> None:
        """``space`` names what made the vectors: those of another embedding model are not comparable, and not read."""
        self._prefix = prefix
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._clock = clock
        self._origin = uuid.uuid4().hex.encode()
        self._space = space.encode()
        self._positions: OrderedDict[str, _Position] = OrderedDict()
        self._link = RedisLink(url, told or outage_log(), prefix=prefix, recover=self._recover)
        self._add_script = Script.load("semantic_common", "semantic_add")
        self._remove_script = Script.load("semantic_common", "semantic_remove")
        self._removals: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Partitions and keys to be removed once Redis is back: a cut answer must not come back with it."""

    async def updates(self, partition: str) -> Sequence[IndexEntry | Removal]:
        """What was added to or removed from a partition since the last call, but for this replica's own entries."""
        position = self._positions.setdefault(partition, _Position())
        self._positions.move_to_end(partition)
        if len(self._positions) > _PARTITIONS:
            self._positions.popitem(last=False)
        loop = asyncio.get_running_loop()
        is_reading = position.reading is not None and not position.reading.done()
        if not is_reading and loop.time() - position.read >= SECONDS_BETWEEN and not self._link.down:
            position.reading = loop.create_task(self._read_on(partition, position))
            await asyncio.wait([position.reading], timeout=SECONDS_TO_WAIT)
        unread, position.unread, position.unread_bytes = position.unread, [], 0
        return unread

    async def publish(self, entry: IndexEntry) -> None:
        """Share an entry with the other replicas."""
        milliseconds = max(1, round((entry.expires - self._clock()) * 1000))
        fields: dict[str, Any] = {
            "origin": self._origin,
            "space": self._space,
            "question": entry.question.encode(errors="surrogatepass"),
            "vector": entry.vector.astype("<f2").tobytes(),
            "payload": entry.payload,
            "key": entry.key,
            "stored": repr(entry.stored),
            "expires": repr(entry.expires),
        }
        bounds = [milliseconds, self._max_bytes, self._max_entries]
        packed = [part for name, value in fields.items() for part in (name, value)]
        with suppress(StoreDown):
            message = await self._run(self._add_script, entry.partition, [*bounds, *packed])
            entry.message = message if isinstance(message, bytes) else None

    async def forget(self, partition: str, key: str, ids: Sequence[bytes]) -> None:
        """Have all replicas remove a key. ``ids``: the messages of its entries, as far as they are known."""
        try:
            await self._run(self._remove_script, partition, [self._origin, key, *ids])
        except StoreDown:
            self._removals[partition, key] = None
            if len(self._removals) > _PARTITIONS:
                self._removals.popitem(last=False)

    async def _read_on(self, partition: str, position: _Position) -> None:
        """Read to the end of a partition, or until ``MOST_UNREAD`` bytes wait for a look-up."""
        name, count = self._name(partition), FIRST_BATCH
        while position.unread_bytes < MOST_UNREAD:
            since: Any = {name: position.last}
            try:
                found: Any = await self._link.ask(partial(_xread, since=since, count=count), TIMEOUT)
            except StoreDown:
                return
            messages = (
                [] if not found else found[0][1] if isinstance(found, list) else found[name.encode()][0]
            )
            read_bytes = 0
            for message, fields in messages:
                position.last = message
                read_bytes += sum(map(len, fields.values()))
                item = self._parse(partition, message, fields)
                if item is not None:
                    position.unread.append(item)
            position.unread_bytes += read_bytes
            if len(messages) < count:
                position.read = asyncio.get_running_loop().time()
                return
            count = max(1, min(BATCH, BATCH_BYTES * len(messages) // max(1, read_bytes)))

    async def _run(self, script: Script, partition: str, args: list[Any], *, probing: bool = False) -> object:
        keys = [self._name(partition), f"{self._prefix}sizes", f"{self._prefix}expiries"]

        async def request(client: redis.Redis) -> object:
            try:
                return await client.evalsha(script.sha, len(keys), *keys, *args)
            except NoScriptError:
                return await client.eval(script.text, len(keys), *keys, *args)

        return await self._link.ask(request, TIMEOUT, probing=probing)

    async def _recover(self) -> None:
        await self._link.write_probe()
        while self._removals:
            partition, key = next(iter(self._removals))
            await self._run(self._remove_script, partition, [self._origin, key], probing=True)
            self._removals.pop((partition, key), None)

    async def aclose(self) -> None:
        reading = [one.reading for one in self._positions.values() if one.reading is not None]
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        await self._link.aclose()

    def _name(self, partition: str) -> str:
        return self._prefix + blake2b(partition.encode(errors="surrogatepass"), digest_size=20).hexdigest()

    def _parse(
        self, partition: str, message: bytes, fields: Mapping[bytes, bytes]
    ) -> IndexEntry | Removal | None:
        """None for this replica's own entries, and for those of another version or another embedding model."""
        try:
            if b"forget" in fields:  # its own too: it may have read the entry only now
                return Removal(fields[b"forget"].decode())
            if fields[b"origin"] == self._origin or fields[b"space"] != self._space:
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


class SpreadIndex:
    """Entries in a Redis Cluster. Each part keeps to its share of ``max_bytes``: no script can see all of them."""

    def __init__(
        self,
        url: str,
        *,
        max_bytes: int,
        max_entries: int,
        clock: Callable[[], float],
        space: str = "",
    ) -> None:
        names = prefixes(url, "semantic", PREFIX)
        told = outage_log(len(names))
        self._parts = [
            SharedIndex(
                url,
                max_bytes=max_bytes // len(names),
                max_entries=max_entries,
                clock=clock,
                prefix=name,
                space=space,
                told=told,
            )
            for name in names
        ]

    async def updates(self, partition: str) -> Sequence[IndexEntry | Removal]:
        return await part_of(partition, self._parts).updates(partition)

    async def publish(self, entry: IndexEntry) -> None:
        await part_of(entry.partition, self._parts).publish(entry)

    async def forget(self, partition: str, key: str, ids: Sequence[bytes]) -> None:
        await part_of(partition, self._parts).forget(partition, key, ids)

    async def aclose(self) -> None:
        await asyncio.gather(*(one.aclose() for one in self._parts))


async def _xread(client: redis.Redis, *, since: Any, count: int) -> Any:
    return await client.xread(since, count=count)
