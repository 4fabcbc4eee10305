"""A store in Redis, shared by all workers and replicas that name the same server."""

from __future__ import annotations

from collections.abc import Mapping

from redis.asyncio.client import Pipeline

from gateway.stores.redis_link import RedisLink

TIMEOUT = 1.0
"""Seconds after which the server counts as down."""


class RedisStore:
    """``url`` as for ``RedisLink``."""

    def __init__(self, url: str, *, prefix: str = "tollgate:") -> None:
        self._prefix = prefix
        self._link = RedisLink(url, "receipts", prefix=prefix)

    async def put(self, values: Mapping[str, bytes], ttl: float) -> None:
        milliseconds = max(1, round(ttl * 1000))

        def fill(pipeline: Pipeline) -> None:
            for key, value in values.items():
                pipeline.set(self._prefix + key, value, px=milliseconds)

        await self._link.pipeline(fill, TIMEOUT)

    async def get(self, key: str) -> bytes | None:
        value = await self._link.ask(lambda client: client.get(self._prefix + key), TIMEOUT)
        return value.encode() if isinstance(value, str) else value

    async def aclose(self) -> None:
        await self._link.aclose()
