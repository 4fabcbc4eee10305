"""What is kept in Redis, in a real cluster and where Sentinels watch: with the master killed, and back as a replica."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from redis.crc import key_slot

from gateway.caching.exact import open_redis_answers
from gateway.stores.redis import RedisStore
from gateway.stores.redis_parts import TAGS, prefixes
from gateway.stores.store import StoreDown
from gateway.stores.tally import RedisTally
from tests.redis_topologies import RedisCluster, SentinelSet

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not look like a server that is away."""
    for module in ("stores.redis", "stores.tally", "caching.exact"):
        monkeypatch.setattr(f"gateway.{module}.TIMEOUT", 60.0)


async def eventually(true: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(300):
        while True:
            try:
                if await true():
                    return
            except StoreDown:
                pass
            await asyncio.sleep(0.05)


def test_parts_lie_evenly_over_the_slots() -> None:
    """So that masters which share the slots evenly, as all tools make them, share the parts evenly, too."""
    slots = [key_slot(tag.encode()) for tag in TAGS]
    assert slots == sorted(slots)
    assert all(abs(later - earlier - 16384 / 12) < 50 for earlier, later in pairwise(slots))
    for masters in (2, 3, 4, 6, 12):
        counts = [0] * masters
        for slot in slots:
            counts[slot * masters // 16384] += 1
        assert set(counts) == {12 // masters}


def test_a_server_alone_keeps_its_keys() -> None:
    assert prefixes("redis://127.0.0.1", "quota", "{tollgate}:quota:") == ["{tollgate}:quota:"]
    assert len(set(prefixes("redis+cluster://a,b", "quota", "x"))) == 12


async def test_a_cluster_keeps_what_is_put(redis_cluster: RedisCluster) -> None:
    store, tally = RedisStore(redis_cluster.url), RedisTally(redis_cluster.url)
    answers = open_redis_answers(redis_cluster.url)
    values = {f"k{i}": str(i).encode() for i in range(100)}
    await eventually(lambda: put(store, values))
    assert await store.get_all([*values, "none"]) == [*values.values(), None]
    await store.delete("k7")
    await store.touch(["k8"], 0.001)
    await eventually(lambda: gone(store, "k7", "k8"))
    assert [await tally.add({"a": 2, "b": 3}, 60), await tally.add({"a": 5}, 60)] == [
        {"a": 2, "b": 3},
        {"a": 7},
    ]
    for key, value in values.items():
        answers.put(key, value, 60)
    answers.evict("k3")
    await asyncio.gather(store.aclose(), tally.aclose(), answers.aclose())

    again = open_redis_answers(redis_cluster.url)

    async def found(key: str) -> bool:
        return await again.get(key) == values[key]

    for key in ("k0", "k50", "k99"):
        await eventually(lambda key=key: found(key))  # type: ignore[misc]
    assert await again.get("k3") is None
    await again.aclose()


async def test_a_clusters_server_that_is_named_alone_says_so(redis_cluster: RedisCluster) -> None:
    """It has some of the keys only."""
    store = RedisStore(redis_cluster.url.replace("redis+cluster://", "redis://").partition(",")[0])
    with pytest.raises(StoreDown, match="part of a cluster"):
        await store.put({str(number): b"x" for number in range(100)}, 60)
    await store.aclose()


async def test_parts_of_other_masters_go_on(redis_cluster: RedisCluster) -> None:
    """While one fails over; then all are there."""
    store = RedisStore(redis_cluster.url)
    keys = [f"part-{i}" for i in range(40)]
    await eventually(lambda: put(store, dict.fromkeys(keys, b"x")))
    master = redis_cluster.master_of(key_slot(TAGS[0].encode()))
    began = time.monotonic()
    master.kill()
    answered = dict.fromkeys(keys, 0)
    for key in keys:
        try:
            answered[key] += await store.get(key) is not None
        except StoreDown:
            continue
    assert sum(answered.values()) >= len(keys) // 3, "those of two masters"
    assert time.monotonic() - began < 60, "and nobody waits for the third"
    await eventually(lambda: put(store, dict.fromkeys(keys, b"y")))
    await asyncio.to_thread(redis_cluster.mend)
    await eventually(lambda: all_up(store))
    await store.aclose()


async def test_sentinels_tell_where_the_master_is(sentinel_set: SentinelSet) -> None:
    store = RedisStore(sentinel_set.url)
    await eventually(lambda: put(store, {"k": b"x"}))
    before = sentinel_set.master
    before.kill()
    with pytest.raises(StoreDown):
        await store.put({"k": b"y"}, 60)
    await eventually(lambda: put(store, {"k": b"z"}))
    assert sentinel_set.master.port != before.port
    assert await store.get("k") == b"z"
    await asyncio.to_thread(sentinel_set.mend)
    assert await store.get("k") == b"z"
    await store.aclose()


async def test_a_sentinel_that_names_a_replica_is_not_believed(sentinel_set: SentinelSet) -> None:
    """It was cut off from the others, say, while they made another server the master."""
    master = sentinel_set.master
    replica = next(node for node in sentinel_set.servers if node is not master)
    place = f"*2\r\n$9\r\n127.0.0.1\r\n${len(str(replica.port))}\r\n{replica.port}\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = [(await reader.readline(), await reader.readline())[1] for _ in range(int(line[1:]))]
            writer.write(place if words[0] == b"SENTINEL\r\n" else b"+OK\r\n")
        writer.close()

    stale = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"redis+sentinel://127.0.0.1:{stale.sockets[0].getsockname()[1]}"
    alone = RedisStore(f"{url}/{sentinel_set.name}/0")
    with pytest.raises(StoreDown, match=f"names 127.0.0.1:{replica.port}, which is a replica"):
        await alone.put({"k": b"x"}, 60)
    await alone.aclose()
    beside = RedisStore(sentinel_set.url.replace("redis+sentinel://", f"{url},"))
    await eventually(lambda: put(beside, {"k": b"x"}))
    assert await beside.get("k") == b"x"
    await beside.aclose()
    stale.close()
    await stale.wait_closed()


async def put(store: RedisStore, values: dict[str, bytes]) -> bool:
    await store.put(values, 600)
    return True


async def gone(store: RedisStore, *keys: str) -> bool:
    return await store.get_all(keys) == [None] * len(keys)


async def all_up(store: RedisStore) -> bool:
    return store.up == 1.0
