"""Two replicas of the semantic index on one real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

pytest.importorskip("faiss")

from gateway.sidecar.semantic.index import SemanticIndex
from gateway.sidecar.semantic.shared_index import TIMEOUT, SharedIndex
from gateway.sidecar.semantic.verifier import Verifier
from tests.conftest import RedisServer
from tests.fakes import within
from tests.gateway.sidecar.semantic.test_index import MIB, Clock, embed

pytestmark = pytest.mark.anyio

TIDES = "How do tides work?"
Replica = Callable[[], SemanticIndex]


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
    monkeypatch.setattr("gateway.sidecar.semantic.shared_index.TIMEOUT", 2.0)
    made: list[SemanticIndex] = []

    def make() -> SemanticIndex:
        made.append(SemanticIndex(embed, own_redis.url, MIB, 1000, verifier=verifier, clock=clock))
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


async def test_a_restart_keeps_entries(replica: Replica) -> None:
    one = replica()
    await one.remember("p", TIDES, b"the moon", key="k", ttl=60)
    await one.aclose()
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
        while one._shared._link.down:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await one.remember("p", "Where do eels breed?", b"sargasso", key="m", ttl=60)
    assert await served(other, question="Where do eels breed?") == b"sargasso"


async def test_a_redis_that_hangs_costs_little(own_redis: RedisServer, clock: Clock) -> None:
    assert own_redis.process is not None
    shared = SharedIndex(own_redis.url, max_entries=10, clock=clock)
    own_redis.process.send_signal(19)  # SIGSTOP: it listens and says nothing
    try:
        async with within(TIMEOUT + 0.25):
            for _ in range(20):
                assert not await shared.updates("p")
    finally:
        own_redis.process.send_signal(18)
        await shared.aclose()


async def test_streams_end_with_their_entries(own_redis: RedisServer, replica: Replica) -> None:
    from redis import asyncio as redis

    await replica().remember("p", TIDES, b"the moon", key="k", ttl=60)
    async with redis.Redis.from_url(own_redis.url) as client:
        (name,) = await client.keys("tollgate:semantic:*")
        assert 0 < await client.pttl(name) <= 60_000
