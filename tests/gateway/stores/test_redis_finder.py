"""Who is asked where a key's server is; with real servers in ``test_topologies.py``."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from redis.exceptions import ConnectionError as NotConnected

from gateway.redis_address import Host, RedisAddress
from gateway.stores.redis_finder import Finder

pytestmark = pytest.mark.anyio


class Together(Finder):
    """Every server is asked, and then all answer in one turn of the loop: the last one knows, the others fail."""

    def __init__(self, address: RedisAddress) -> None:
        super().__init__(address, "tollgate{a}")
        self.all_asked = asyncio.Event()

    async def _ask_cluster(self, host: Host) -> Host | None:
        if host == self.address.hosts[-1]:
            self.all_asked.set()
            return host
        await self.all_asked.wait()
        raise NotConnected("gone")


async def test_who_fails_in_the_moment_of_an_answer_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise asyncio logs ``Task exception was never retrieved``, with a traceback for each."""
    monkeypatch.setattr("gateway.stores.redis_finder.HEAD_START", 0.0)
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    url = "redis+cluster://" + ",".join(f"host:{port}" for port in range(7001, 7010))
    assert await Together(RedisAddress.parse(url)).find() == ("host", 7009)
    gc.collect()
    assert complaints == []
