"""A Redis that has lost its data: which server it is, and whether all who share it have told it what they know."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from gateway.stores.redis_link import RedisLink
from gateway.stores.store import StoreDown

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline

TIMEOUT = 0.25
SECONDS_TO_TELL = 3.0
"""For all to notice it, which takes them a second, and to read their ledgers."""
LOOK_EVERY = 0.05


async def run_id(link: RedisLink) -> str:
    """That of the server which answers now: a replica's is another. Empty where it does not tell."""
    try:
        told = await link.ask(lambda client: client.info("server"), TIMEOUT, probing=True)
    except StoreDown:
        return ""
    return str(told.get("run_id", ""))


async def wait_for_all(link: RedisLink, key: str, name: str, gateways: int) -> None:
    """``name`` has told the server what it has settled; wait until ``gateways`` processes have. What is admitted before
    would be beyond a budget. Raises ``StoreDown``."""
    until = time.monotonic() + SECONDS_TO_TELL

    def tell(pipeline: Pipeline) -> None:
        pipeline.sadd(key, name)
        pipeline.pexpire(key, round(2000 * SECONDS_TO_TELL))
        pipeline.scard(key)

    while True:
        *_, count = await link.pipeline(tell, TIMEOUT, probing=True)
        if int(str(count)) >= gateways or time.monotonic() > until:
            return
        await asyncio.sleep(LOOK_EVERY)
