"""Gateways come back to a Redis that was away or has lost its data: all tell what they know before anyone goes on."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from gateway.stores.redis_link import RedisLink

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

TIMEOUT = 0.25
SECONDS_TO_TELL = 3.0
"""For all to notice it, which takes them a second, and to read their ledgers."""
LOOK_EVERY = 0.05
FRESH = 1.0
"""Seconds for which an account of an outage counts, unless the server is another: each repeats it as it waits."""


async def wait_for_all(link: RedisLink, key: str, name: str, gateways: int, *, lost: bool) -> None:
    """``name`` has told the server what it knows; wait until ``gateways`` processes have. What is admitted before would
    be beyond a budget. Raises ``StoreDown``.

    ``lost``: ``key`` is of this loss alone.
    """
    until = time.monotonic() + SECONDS_TO_TELL
    fresh = 2 * SECONDS_TO_TELL if lost else FRESH

    while True:
        now, _ = await link.ask(lambda client: client.time(), TIMEOUT, probing=True)

        def tell(pipeline: Pipeline, now: int = now) -> None:
            pipeline.zadd(key, {name: now})
            pipeline.pexpire(key, round(2000 * SECONDS_TO_TELL))
            pipeline.zcount(key, now - fresh, "+inf")

        *_, count = await link.pipeline(tell, TIMEOUT, probing=True)
        if int(str(count)) >= gateways or time.monotonic() > until:
            return
        await asyncio.sleep(LOOK_EVERY)


async def replication_id(link: RedisLink) -> str:
    """Of the server, another each time that it becomes a master; empty where it does not tell. Raises ``StoreDown``."""
    from redis.exceptions import ResponseError

    async def ask(client: Redis) -> str:
        try:
            return str((await client.info("replication")).get("master_replid", ""))
        except ResponseError:  # this user may not ask
            return ""

    return await link.ask(ask, TIMEOUT, probing=True)


async def begin_anew(link: RedisLink, key: str, name: str) -> None:
    """``name`` was away, and has yet to tell what it did meanwhile. Raises ``StoreDown``."""
    await link.ask(lambda client: client.zrem(key, name), TIMEOUT, probing=True)
