"""What every store promises, held against each of them; Redis is a real server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from gateway.stores.memory import MemoryStore
from gateway.stores.redis import RedisStore
from gateway.stores.store import Store
from tests.conftest import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    # What it gives up on has tests of its own; here a busy machine may take its time.
    monkeypatch.setattr("gateway.stores.redis.TIMEOUT", 60)
    store: Store
    if request.param == "memory":
        store = MemoryStore()
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        store = RedisStore(server.url, prefix=f"test:{secrets.token_hex(8)}:")
    yield store
    await store.aclose()


@pytest.mark.parametrize(
    "value", [b"", b"x", b"\x00\xff\n", b"x" * 2**20], ids=["empty", "one", "binary", "1MiB"]
)
@pytest.mark.parametrize("key", ["a", "receipt:acme req_1", "ключ", "a" * 500])
async def test_what_is_put_is_got(store: Store, key: str, value: bytes) -> None:
    assert await store.get(key) is None
    await store.put({key: value}, 60)
    assert await store.get(key) == value
    assert await store.get(key + "x") is None


async def test_the_last_value_counts(store: Store) -> None:
    for value in (b"a", b"bb", b"c"):
        await store.put({"k": value}, 60)
    assert await store.get("k") == b"c"


async def test_values_expire(store: Store) -> None:
    await store.put({"short": b"x"}, 1.0)
    await store.put({"long": b"x"}, 60)
    assert await store.get("short") == b"x"
    await asyncio.sleep(1.05)
    assert await store.get("short") is None
    assert await store.get("long") == b"x"


async def test_putting_again_renews_the_time(store: Store) -> None:
    await store.put({"k": b"a"}, 0.05)
    await store.put({"k": b"b"}, 60)
    await asyncio.sleep(1.05)
    assert await store.get("k") == b"b"


@pytest.mark.parametrize("ttl", [0.0001, 1e-9])
async def test_the_shortest_of_times(store: Store, ttl: float) -> None:
    await store.put({"k": b"x"}, ttl)
    await asyncio.sleep(0.01)
    assert await store.get("k") is None


async def test_many_at_once(store: Store) -> None:
    await asyncio.gather(*(store.put({str(i): b"%d" % i}, 60) for i in range(100)))
    assert await asyncio.gather(*(store.get(str(i)) for i in range(100))) == [b"%d" % i for i in range(100)]


async def test_several_are_got_at_once_in_their_order(store: Store) -> None:
    await store.put({"a": b"1", "b": b""}, 60)
    assert await store.get_all(["b", "none", "a"]) == [b"", None, b"1"]
    assert await store.get_all([]) == []


async def test_what_is_touched_lives_on(store: Store) -> None:
    await store.put({"kept": b"x", "left": b"x"}, 0.5)
    await store.touch(["kept", "none"], 60)
    await store.touch([], 60)
    await asyncio.sleep(1.05)
    assert await store.get_all(["kept", "left", "none"]) == [b"x", None, None]


async def test_what_is_deleted_is_gone(store: Store) -> None:
    await store.put({"a": b"1", "b": b"2"}, 60)
    await store.delete("a")
    await store.delete("none")
    assert await store.get_all(["a", "b"]) == [None, b"2"]


async def test_closing_twice_is_no_harm(store: Store) -> None:
    await store.put({"k": b"x"}, 60)
    await store.aclose()
    await store.aclose()
