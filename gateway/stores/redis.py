"""A store in Redis, shared by all workers and replicas that name the same server."""

from __future__ import annotations

from collections.abc import Mapping

from redis import asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.stores.patience import patience
from gateway.stores.store import StoreDown

SECONDS_TO_ANSWER = 1.0
"""A store that is slower than this is down: the gateway keeps its own latency. Its own lag does not count."""
SECONDS_TO_GIVE_UP = 10.0
"""For the client, which has no such patience."""


class RedisStore:
    """``url`` is ``redis://[user:password@]host[:port]/[db]``, or ``rediss://`` for TLS."""

    def __init__(self, url: str, *, prefix: str = "tollgate:") -> None:
        self._prefix = prefix
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=SECONDS_TO_GIVE_UP,
            socket_connect_timeout=SECONDS_TO_GIVE_UP,
            retry=Retry(NoBackoff(), 1),
        )

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        try:
            async with patience(SECONDS_TO_ANSWER):
                await self._redis.set(self._prefix + key, value, px=max(1, round(ttl * 1000)))
        except (RedisError, OSError) as error:
            raise StoreDown(f"Redis did not take a value: {str(error) or 'it is too slow'}") from error

    async def put_many(self, values: Mapping[str, bytes], ttl: float) -> None:
        try:
            async with (
                patience(SECONDS_TO_ANSWER),
                self._redis.pipeline(transaction=False) as pipeline,
            ):
                for key, value in values.items():
                    pipeline.set(self._prefix + key, value, px=max(1, round(ttl * 1000)))
                await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StoreDown(f"Redis did not take values: {str(error) or 'it is too slow'}") from error

    async def get(self, key: str) -> bytes | None:
        try:
            async with patience(SECONDS_TO_ANSWER):
                value = await self._redis.get(self._prefix + key)
        except (RedisError, OSError) as error:
            raise StoreDown(f"Redis did not answer: {str(error) or 'it is too slow'}") from error
        return value.encode() if isinstance(value, str) else value

    async def aclose(self) -> None:
        await self._redis.aclose()
