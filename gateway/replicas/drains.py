"""Backends and replicas that are drained for all gateways of one store: a set in Redis, which outlives them."""

from __future__ import annotations

import asyncio

from gateway.control.changes import ChangeRefused
from gateway.stores.outage_log import OutageLog
from gateway.stores.redis_link import RedisLink
from gateway.stores.redis_parts import prefixes
from gateway.stores.store import StoreDown

TIMEOUT = 1.0
"""Seconds after which Redis counts as down."""


class CommonDrains:
    """Every method raises ``StoreDown``."""

    def __init__(self, url: str, *, prefix: str = "tollgate:") -> None:
        self._link = RedisLink(
            url,
            OutageLog("drained backends", "those that were drained last stay so, and none can be"),
            prefix=prefixes(url, "drained", prefix)[0],
        )
        self._key = self._link.prefix + "drained"

    async def names(self) -> frozenset[str]:
        found = await self._link.ask(lambda client: client.smembers(self._key), TIMEOUT)
        return frozenset(one.decode() if isinstance(one, bytes) else str(one) for one in found)

    async def set(self, name: str, *, drained: bool) -> bool:
        """Whether this changed anything."""
        if drained:
            return bool(await self._link.ask(lambda client: client.sadd(self._key, name), TIMEOUT))
        return bool(await self._link.ask(lambda client: client.srem(self._key, name), TIMEOUT))

    async def aclose(self) -> None:
        await self._link.aclose()


def drain_for_all(url: str, name: str, drained: bool) -> bool:
    """The same for who has no event loop (``gateway.control.changes``). Raises ``ChangeRefused``."""

    async def run() -> bool:
        drains = CommonDrains(url)
        try:
            return await drains.set(name, drained=drained)
        finally:
            await drains.aclose()

    try:
        return asyncio.run(run())
    except StoreDown as error:
        raise ChangeRefused(f"{error} Nothing was drained or undrained; try again") from None
