"""A store in Redis, shared by all workers and replicas that name the same server or cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.stores.outage_log import OutageLog
from gateway.stores.redis_link import RedisLink
from gateway.stores.redis_parts import by_part, part_of, prefixes

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline

TIMEOUT = 1.0
"""Seconds after which the server counts as down."""
PREFIX = "tollgate:"


class RedisStore:
    """``url`` as for ``RedisLink``; ``name`` is what it stores, for the log. Keys spread over a cluster's parts."""

    def __init__(self, url: str, *, name: str = "receipts", prefix: str = PREFIX) -> None:
        places = prefixes(url, prefix.strip("{}:"), prefix)
        told = OutageLog(name, "new ones are lost", parts=len(places))
        self._links = [RedisLink(url, told, prefix=one) for one in places]

    @property
    def down(self) -> bool:
        """Whether it failed when it was last asked, or any part of it."""
        return any(link.down for link in self._links)

    @property
    def up(self) -> float:
        """1 where it answered when it was last asked; of a cluster, the share of its parts that did."""
        return sum(not link.down for link in self._links) / len(self._links)

    async def put(self, values: Mapping[str, bytes], ttl: float) -> None:
        milliseconds = max(1, round(ttl * 1000))

        def fill(pipeline: Pipeline, prefix: str, key: str) -> None:
            pipeline.set(prefix + key, values[key], px=milliseconds)

        await self._each(values, fill)

    async def get(self, key: str) -> bytes | None:
        link = part_of(key, self._links)
        value = await link.ask(lambda client: client.get(link.prefix + key), TIMEOUT)
        return value if isinstance(value, bytes) else None

    async def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        found = await self._each(keys, lambda pipeline, prefix, key: pipeline.get(prefix + key))
        values = (found.get(key) for key in keys)
        return [value if isinstance(value, bytes) else None for value in values]

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        milliseconds = max(1, round(ttl * 1000))
        await self._each(keys, lambda pipeline, prefix, key: pipeline.pexpire(prefix + key, milliseconds))

    async def delete(self, key: str) -> None:
        link = part_of(key, self._links)
        await link.ask(lambda client: client.delete(link.prefix + key), TIMEOUT)

    async def aclose(self) -> None:
        await asyncio.gather(*(link.aclose() for link in self._links))

    async def _each(
        self, keys: Iterable[str], fill: Callable[[Pipeline, str, str], object]
    ) -> dict[str, object]:
        """The answers to one command for each key, by key. Of each part in one round trip, and of all at once."""

        async def ask(link: RedisLink, keys: Sequence[str]) -> Sequence[object]:
            def fill_all(pipeline: Pipeline) -> None:
                for key in keys:
                    fill(pipeline, link.prefix, key)

            return await link.pipeline(fill_all, TIMEOUT)

        shares = by_part(keys, self._links)
        answers = await asyncio.gather(*(ask(self._links[part], share) for part, share in shares.items()))
        return {
            key: answer
            for share, found in zip(shares.values(), answers, strict=True)
            for key, answer in zip(share, found, strict=True)
        }
