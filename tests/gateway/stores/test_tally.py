"""Sums that several processes keep together, in memory and in a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from gateway.stores import tally as module
from gateway.stores.store import StoreDown
from gateway.stores.tally import MemoryTally, RedisTally, Tally
from tests.conftest import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 60.0)


@pytest.fixture(params=["memory", "redis"])
async def tally(request: pytest.FixtureRequest) -> AsyncIterator[Tally]:
    if request.param == "memory":
        one: Tally = MemoryTally()
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        one = RedisTally(server.url, prefix=f"{uuid4().hex}:")
    yield one
    await one.aclose()


async def test_each_addition_is_told_the_sum_after_it(tally: Tally) -> None:
    assert await tally.add({"a": 3, "b": 1}, 60) == {"a": 3, "b": 1}
    assert await tally.add({"a": 4, "c": 0}, 60) == {"a": 7, "c": 0}
    assert await tally.add({}, 60) == {}


async def test_one_of_many_is_the_first(tally: Tally) -> None:
    sums = await asyncio.gather(*(tally.add({"x": 1}, 60) for _ in range(20)))
    assert sorted(one["x"] for one in sums) == list(range(1, 21))


async def test_memory_forgets() -> None:
    now = 0.0
    tally = MemoryTally(clock=lambda: now)
    await tally.add({"a": 3}, 60)
    now = 60.0
    assert await tally.add({"a": 1}, 60) == {"a": 1}


async def test_a_server_that_is_away(own_redis: RedisServer) -> None:
    tally = RedisTally(own_redis.url)
    try:
        await tally.add({"a": 1}, 60)
        own_redis.kill()
        with pytest.raises(StoreDown):
            await tally.add({"a": 1}, 60)
    finally:
        await tally.aclose()
