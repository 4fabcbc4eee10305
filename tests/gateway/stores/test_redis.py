"""Redis going away, coming back, and being too slow: a real server, killed and stopped for real."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.stores import redis as module
from gateway.stores.redis import TIMEOUT, RedisStore
from gateway.stores.store import StoreDown
from tests.conftest import RedisServer
from tests.fakes import within

pytestmark = pytest.mark.anyio


Give = Callable[[float], None]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Give:
    """A busy machine must not look like a server that is away; a test about that gives less."""

    def give(seconds: float) -> None:
        monkeypatch.setattr(module, "TIMEOUT", seconds)

    give(60.0)
    return give


@pytest.fixture
async def store(own_redis: RedisServer) -> AsyncIterator[RedisStore]:
    store = RedisStore(own_redis.url)
    yield store
    await store.aclose()


async def back(store: RedisStore) -> None:
    async with asyncio.timeout(300):
        while store._links[0].down:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_killed(own_redis: RedisServer, store: RedisStore) -> None:
    await store.put({"k": b"x"}, 60)
    own_redis.kill()
    async with within(1.5):
        with pytest.raises(StoreDown):
            await store.get("k")
        with pytest.raises(StoreDown):
            await store.put({"k": b"x"}, 60)


async def test_never_there() -> None:
    store = RedisStore("redis://127.0.0.1:1/0")
    async with within(1.5):
        with pytest.raises(StoreDown, match=r"127\.0\.0\.1"):
            await store.get("k")
    await store.aclose()


async def test_back_again(own_redis: RedisServer, store: RedisStore) -> None:
    await store.put({"k": b"x"}, 60)
    own_redis.kill()
    with pytest.raises(StoreDown):
        await store.get("k")
    own_redis.start()
    await back(store)
    assert await store.get("k") is None
    await store.put({"k": b"y"}, 60)
    assert await store.get("k") == b"y"


async def test_restarted_between_two_calls_is_not_noticed(own_redis: RedisServer, store: RedisStore) -> None:
    await store.put({"k": b"x"}, 60)
    own_redis.kill()
    own_redis.start()
    await store.put({"k": b"y"}, 60)
    assert await store.get("k") == b"y"


async def test_too_slow_is_down(own_redis: RedisServer, store: RedisStore, patience: Give) -> None:
    await store.put({"k": b"x"}, 60)
    patience(TIMEOUT)
    assert own_redis.process is not None
    own_redis.process.send_signal(signal.SIGSTOP)
    try:
        async with within(TIMEOUT + 0.4):
            answers = await asyncio.gather(
                *(store.get("k") for _ in range(5)), store.put({"k": b"y"}, 60), return_exceptions=True
            )
        assert [type(answer) for answer in answers] == [StoreDown] * 6
        assert all(str(answer).strip(": ") for answer in answers)
    finally:
        patience(60.0)
        own_redis.process.send_signal(signal.SIGCONT)
    await back(store)
    assert await store.get("k") in (b"x", b"y")


async def test_an_error_of_redis_is_store_down(own_redis: RedisServer, store: RedisStore) -> None:
    await store._links[0].redis.config_set("maxmemory", "1")
    with pytest.raises(StoreDown, match=r"(?i)memory"):
        await store.put({"k": b"x"}, 60)


async def test_the_prefix_and_the_time_to_live_are_redis_own(
    own_redis: RedisServer, store: RedisStore
) -> None:
    await store.put({"k": b"x"}, 60)
    assert await store._links[0].redis.keys("*") == [b"tollgate:k"]
    assert 59_000 < await store._links[0].redis.pttl("tollgate:k") <= 60_000
