"""Two replicas of the semantic index on one real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

pytest.importorskip("faiss")

from gateway.sidecar.semantic.entries import IndexEntry
from gateway.sidecar.semantic.index import SemanticIndex
from gateway.sidecar.semantic.shared_index import SECONDS_TO_WAIT, Removal, SharedIndex
from gateway.sidecar.semantic.verifier import Verifier
from gateway.stores.store import StoreDown
from tests.conftest import RedisServer
from tests.fakes import within
from tests.gateway.sidecar.semantic.test_index import MIB, Clock, embed
from tests.redis_topologies import RedisCluster

pytestmark = pytest.mark.anyio

TIDES = "How do tides work?"
Replica = Callable[..., SemanticIndex]


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    return Verifier.load()


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.now = time.time()
    return clock


@pytest.fixture
async def replica(
    own_redis: RedisServer, verifier: Verifier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Replica]:
    monkeypatch.setattr("gateway.sidecar.semantic.shared_index.SECONDS_BETWEEN", 0.0)
    # A busy machine must not turn a good test red: only the test of the bound keeps to it.
    monkeypatch.setattr("gateway.sidecar.semantic.shared_index.TIMEOUT", 5.0)
    monkeypatch.setattr("gateway.sidecar.semantic.shared_index.SECONDS_TO_WAIT", 5.0)
    made: list[SemanticIndex] = []

    def make(space: str = "model 1") -> SemanticIndex:
        made.append(
            SemanticIndex(embed, own_redis.url, MIB, 1000, verifier=verifier, clock=clock, space=space)
        )
        return made[-1]

    yield make
    for index in made:
        await index.aclose()


async def served(index: SemanticIndex, partition: str = "p", question: str = TIDES) -> bytes | None:
    hit = (await index.look_up(partition, question, budget=0.05)).hit
    return None if hit is None else hit.payload


async def test_what_one_remembers_the_other_finds(replica: Replica, clock: Clock) -> None:
    one, other = replica(), replica()
    await one.remember("p", TIDES, b"the moon\x00\xff", key="k", ttl=60)
    assert await served(other) == b"the moon\x00\xff"
    await other.remember("p", "Why is snow white?", b"light", key="l", ttl=60)
    assert await served(one, question="Why is snow white?") == b"light"


async def test_partitions_spread_over_a_cluster(
    redis_cluster: RedisCluster, verifier: Verifier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TIMEOUT", "SECONDS_TO_WAIT"):
        monkeypatch.setattr(f"gateway.sidecar.semantic.shared_index.{name}", 60.0)
    # A quick machine looks again before a replica would read again.
    monkeypatch.setattr("gateway.sidecar.semantic.shared_index.SECONDS_BETWEEN", 0.0)
    one, other = (
        SemanticIndex(embed, redis_cluster.url, 12 * MIB, 1000, verifier=verifier, clock=clock)
        for _ in range(2)
    )
    partitions = [f"{time.time()}-{i}" for i in range(12)]
    for partition in partitions:
        await one.remember(partition, TIDES, partition.encode(), key=partition, ttl=60)
    assert [await served(other, partition) for partition in partitions] == [
        one.encode() for one in partitions
    ]
    await one.forget(partitions[0], partitions[0])
    assert await served(other, partitions[0]) is None
    assert one._shared is not None
    assert {part._max_bytes for part in one._shared._parts} == {MIB}
    for index in (one, other):
        await index.aclose()


async def test_a_restart_keeps_entries(replica: Replica) -> None:
    one = replica()
    await one.remember("p", TIDES, b"the moon", key="k", ttl=60)
    await one.aclose()
    assert await served(replica()) == b"the moon"


async def test_another_embedding_model_does_not_read_what_is_there(replica: Replica) -> None:
    old = replica()
    await old.remember("p", TIDES, b"the moon", key="k", ttl=60)
    new = replica("model 2")
    assert await served(new) is None
    await new.remember("p", TIDES, b"sun and moon", key="l", ttl=60)
    assert await served(replica("model 2")) == b"sun and moon"
    assert await served(replica()) == b"the moon"


async def test_what_one_forgets_is_gone_from_all(replica: Replica) -> None:
    one, other = replica(), replica()
    await one.remember("p", TIDES, b"the moon", key="k", ttl=60)
    assert await served(other) == b"the moon"
    await other.forget("p", "k")
    assert await served(other) is None
    assert await served(one) is None
    assert await served(replica()) is None


async def test_an_entry_that_was_not_read_yet_can_be_forgotten(replica: Replica) -> None:
    one, other = replica(), replica()
    await one.remember("p", TIDES, b"the moon", key="k", ttl=60)
    await other.forget("p", "k")
    assert await served(one) is None
    assert await served(other) is None


async def test_another_partition_never_has_it(replica: Replica) -> None:
    one, other = replica(), replica()
    await one.remember("tenant a", TIDES, b"the moon", key="k", ttl=60)
    assert await served(other, "tenant b") is None
    await other.forget("tenant b", "k")
    assert await served(one, "tenant a") == b"the moon"


async def test_expired_entries_are_not_read(replica: Replica, clock: Clock) -> None:
    one, other = replica(), replica()
    await one.remember("p", TIDES, b"the moon", key="k", ttl=60)
    clock.now += 61
    assert await served(one) is None
    assert await served(other) is None
    assert len(other) == 0


async def test_without_redis_what_is_known_serves_and_it_comes_back(
    replica: Replica, own_redis: RedisServer
) -> None:
    one, other = replica(), replica()
    await one.remember("p", TIDES, b"the moon", key="k", ttl=60)
    own_redis.kill()
    assert await served(one) == b"the moon"
    await one.remember("p", "Why is snow white?", b"light", key="l", ttl=60)
    assert await served(one, question="Why is snow white?") == b"light"
    own_redis.start()
    assert one._shared is not None
    async with asyncio.timeout(300):
        while one._shared._parts[0]._link.down:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await one.remember("p", "Where do eels breed?", b"sargasso", key="m", ttl=60)
    assert await served(other, question="Where do eels breed?") == b"sargasso"


async def test_a_redis_that_hangs_costs_little(own_redis: RedisServer, clock: Clock) -> None:
    assert own_redis.process is not None
    shared = SharedIndex(own_redis.url, max_bytes=MIB, max_entries=10, clock=clock)
    own_redis.process.send_signal(19)  # SIGSTOP: it listens and says nothing
    try:
        async with within(SECONDS_TO_WAIT + 0.25):
            for _ in range(20):
                assert not await shared.updates("p")
    finally:
        own_redis.process.send_signal(18)
        await shared.aclose()


async def test_streams_end_with_their_entries(own_redis: RedisServer, replica: Replica) -> None:
    from redis import asyncio as redis

    await replica().remember("p", TIDES, b"the moon", key="k", ttl=60)
    async with redis.Redis.from_url(own_redis.url) as client:
        (name,) = [key for key in await client.keys("{tollgate}:semantic:*") if len(key) > 40]
        assert 0 < await client.pttl(name) <= 60_000


async def streams(server: RedisServer) -> int:
    """Bytes of all messages, as Redis has them."""
    from redis import asyncio as redis

    size = 0
    async with redis.Redis.from_url(server.url) as client:
        for name in await client.keys("{tollgate}:semantic:*"):
            if await client.type(name) == b"stream":
                for _, fields in await client.xrange(name):
                    size += sum(len(name) + len(value) for name, value in fields.items())
    return size


async def counted(server: RedisServer) -> dict[bytes, int]:
    from redis import asyncio as redis

    async with redis.Redis.from_url(server.url) as client:
        sizes: dict[bytes, bytes] = await client.hgetall("{tollgate}:semantic:sizes")  # type: ignore[misc]
    return {name: int(size) for name, size in sizes.items()}


async def entries_of(shared: SharedIndex, partition: str) -> list[str]:
    """The keys of all that another replica reads, in as many calls as it takes."""
    found: list[str] = []
    async with asyncio.timeout(300):
        while True:
            updates = await shared.updates(partition)
            found += [item.key for item in updates if isinstance(item, IndexEntry)]
            position = shared._positions[partition]
            if position.read > 0 and not position.unread:
                return found
            await asyncio.sleep(0.001)


def an_entry(clock: Clock, number: int, size: int, *, ttl: float = 60, partition: str = "p") -> IndexEntry:
    vector = np.ones(4, dtype=np.float32) / 2
    key, now = f"k{number}", clock()
    return IndexEntry(partition, f"Question {number}?", vector, bytes(size), key, now, now + ttl)


@pytest.fixture
async def shared(
    own_redis: RedisServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[int], SharedIndex]]:
    monkeypatch.setattr("gateway.sidecar.semantic.shared_index.TIMEOUT", 60.0)
    made: list[SharedIndex] = []

    def make(max_bytes: int = 100 * MIB) -> SharedIndex:
        made.append(SharedIndex(own_redis.url, max_bytes=max_bytes, max_entries=10_000, clock=clock))
        return made[-1]

    yield make
    for one in made:
        await one.aclose()


async def test_entries_of_40_kb_come_back_after_a_restart(
    shared: Callable[..., SharedIndex], clock: Clock
) -> None:
    """25 MB: more than is read at once, more than waits for a look-up, and more than 50 ms."""
    one = shared()
    for number in range(600):
        await one.publish(an_entry(clock, number, 40_000))
    assert not one._link.down
    assert await entries_of(shared(), "p") == [f"k{number}" for number in range(600)]


async def test_expired_entries_leave_a_busy_partition(
    shared: Callable[..., SharedIndex], own_redis: RedisServer, clock: Clock
) -> None:
    one = shared()
    for number in range(50):
        await one.publish(an_entry(clock, number, 1000, ttl=-1 if number < 40 else 60))
    assert await streams(own_redis) < 13_000
    assert (await counted(own_redis))[b"total"] == sum(
        size for name, size in (await counted(own_redis)).items() if name != b"total"
    )


async def test_all_partitions_together_keep_to_max_bytes(
    shared: Callable[..., SharedIndex], own_redis: RedisServer, clock: Clock
) -> None:
    one = shared(100_000)
    for number in range(60):
        await one.publish(an_entry(clock, number, 5_000, ttl=60 + number, partition=f"p{number % 3}"))
        assert await streams(own_redis) <= 100_000
    assert await streams(own_redis) > 80_000
    assert (await entries_of(shared(), "p2"))[-1] == "k59", "the latest is kept"
    assert (await counted(own_redis))[b"total"] <= 100_000


async def test_what_is_forgotten_while_redis_is_down_does_not_come_back(
    shared: Callable[..., SharedIndex],
    own_redis: RedisServer,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.sidecar.semantic.shared_index.SECONDS_TO_WAIT", 60.0)
    one = shared()
    await one.publish(an_entry(clock, 1, 10))
    assert own_redis.process is not None
    own_redis.process.send_signal(19)  # SIGSTOP
    try:
        one._link.fail(StoreDown("for a test"))
        await one.forget("p", "k1", [])
    finally:
        own_redis.process.send_signal(18)
    async with asyncio.timeout(300):
        while one._link.down:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    updates = await shared().updates("p")
    assert [type(item) for item in updates] == [IndexEntry, Removal]
