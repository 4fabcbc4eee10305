"""A store in Redis, shared by all workers and replicas that name the same server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.stores.redis_link import RedisLink

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline

TIMEOUT = 1.0
"""Seconds after which the server counts as down."""


class RedisStore:
    """``url`` as for ``RedisLink``; ``name`` is what it stores, for the log."""

    def __init__(self, url: str, *, name: str = "receipts", prefix: str = "tollgate:") -> None:
        self._prefix = prefix
        self._link = RedisLink(url, name, prefix=prefix)

    @property
    def down(self) -> bool:
        """Whether it failed when it was last asked."""
        return self._link.down

    async def put(self, values: Mapping[str, bytes], ttl: float) -> None:
        milliseconds = max(1, round(ttl * 1000))

        def fill(pipeline: Pipeline) -> None:
            for key, value in values.items():
                pipeline.set(self._prefix + key, value, px=milliseconds)

        await self._link.pipeline(fill, TIMEOUT)

    async def get(self, key: str) -> bytes | None:
        value = await self._link.ask(lambda client: client.get(self._prefix + key), TIMEOUT)
        return value.encode() if isinstance(value, str) else value

    async def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        def fill(pipeline: Pipeline) -> None:  # not MGET, whose keys must be of one slot of a cluster
            for key in keys:
                pipeline.get(self._prefix + key)

        found = await self._link.pipeline(fill, TIMEOUT) if keys else []
        return [value if isinstance(value, bytes) else None for value in found]

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        def fill(pipeline: Pipeline) -> None:
            for key in keys:
                pipeline.pexpire(self._prefix + key, max(1, round(ttl * 1000)))

        if keys:
            await self._link.pipeline(fill, TIMEOUT)

    async def delete(self, key: str) -> None:
        await self._link.ask(lambda client: client.delete(self._prefix + key), TIMEOUT)

    async def aclose(self) -> None:
        await self._link.aclose()
