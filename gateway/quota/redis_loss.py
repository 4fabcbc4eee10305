"""Gateways come back to a Redis that was away or has lost its data: all tell what they know before anyone goes on."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from gateway.stores.redis_link import RedisLink

if TYPE_CHECKING:
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

    ``lost``: ``key`` is of this loss alone, as it has the server's run id.
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


async def begin_anew(link: RedisLink, key: str, name: str) -> None:
    """``name`` was away, and has yet to tell what it did meanwhile. Raises ``StoreDown``."""
    await link.ask(lambda client: client.zrem(key, name), TIMEOUT, probing=True)
