"""Both places where answers are kept; the one in Redis also while that is away."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caching.exact import OVERHEAD, TIMEOUT, MemoryAnswerStore, RedisAnswerStore
from tests.conftest import RedisServer
from tests.fakes import within

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A busy machine must not look like a server that is away; a test about that gives less."""

    def give(seconds: float) -> None:
        monkeypatch.setattr("gateway.caching.exact.TIMEOUT", seconds)

    give(3.0)
    return give


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_memory_keeps_for_its_time() -> None:
    clock = Clock()
    answers = MemoryAnswerStore(10_000, clock=clock)
    answers.put("a", b"one", 10.0)
    clock.now += 9.9
    assert await answers.get("a") == b"one"
    clock.now += 0.1
    assert await answers.get("a") is None
    assert (len(answers), answers.bytes) == (0, 0)


async def test_memory_gives_up_what_was_not_used_for_longest() -> None:
    entry = OVERHEAD + 1 + 100
    answers = MemoryAnswerStore(3 * entry)
    for key in "abc":
        answers.put(key, bytes(100), 10.0)
    assert await answers.get("a")
    answers.put("d", bytes(100), 10.0)
    assert [key for key in "abcd" if await answers.get(key)] == ["a", "c", "d"]
    answers.resize(entry)
    assert [key for key in "abcd" if await answers.get(key)] == ["d"]
    answers.put("e", bytes(entry), 10.0)
    assert len(answers) == 0


async def test_memory_counts_every_byte_once() -> None:
    answers = MemoryAnswerStore(10_000)
    answers.put("a", b"one", 10.0)
    answers.put("a", b"three", 10.0)
    assert answers.bytes == OVERHEAD + 1 + 5
    answers.evict("a")
    answers.evict("a")
    assert answers.bytes == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "get", "evict", "wait"]), st.sampled_from("abcd"), st.integers(0, 900)
        ),
        max_size=40,
    )
)
def test_memory_never_holds_more_than_it_may(steps: list[tuple[str, str, int]]) -> None:
    async def run() -> None:
        clock = Clock()
        answers = MemoryAnswerStore(2000, clock=clock)
        for what, key, size in steps:
            if what == "put":
                answers.put(key, bytes(size), 5.0)
            elif what == "get":
                await answers.get(key)
            elif what == "evict":
                answers.evict(key)
            else:
                clock.now += size / 300
            entries = answers._entries
            assert answers.bytes == sum(len(k) + len(v) + OVERHEAD for k, (v, _) in entries.items()) <= 2000

    asyncio.run(run())


@pytest.fixture
async def stored(redis_server: RedisServer) -> AsyncIterator[RedisAnswerStore]:
    answers = RedisAnswerStore(redis_server.url, prefix=f"test:{secrets.token_hex(4)}:")
    yield answers
    await answers.aclose()


async def settled(answers: RedisAnswerStore) -> None:
    """All that was to be told has been told."""
    async with asyncio.timeout(300):
        while answers._unsent:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_redis_finds_what_was_put_at_once_and_later(stored: RedisAnswerStore) -> None:
    assert await stored.get("a") is None
    stored.put("a", b"\x00\xff", 10.0)
    assert await stored.get("a") == b"\x00\xff"
    await settled(stored)
    assert await stored.get("a") == b"\x00\xff"
    stored.evict("a")
    assert await stored.get("a") is None
    await settled(stored)
    assert await stored.get("a") is None


async def test_redis_is_shared_and_what_comes_last_counts(
    stored: RedisAnswerStore, redis_server: RedisServer
) -> None:
    other = RedisAnswerStore(redis_server.url, prefix=stored._prefix)
    for i in range(200):
        stored.put(f"k{i % 7}", b"%d" % i, 10.0)
    stored.evict("k0")
    await settled(stored)
    assert [await other.get(f"k{i}") for i in range(7)] == [
        None,
        *(b"%d" % max(n for n in range(200) if n % 7 == i) for i in range(1, 7)),
    ]
    await other.aclose()


async def test_redis_forgets_in_time(stored: RedisAnswerStore) -> None:
    stored.put("a", b"x", 0.05)
    await settled(stored)
    await asyncio.sleep(0.1)
    assert await stored.get("a") is None


async def test_what_is_on_its_way_gets_there_before_the_end(redis_server: RedisServer) -> None:
    prefix = f"test:{secrets.token_hex(4)}:"
    first = RedisAnswerStore(redis_server.url, prefix=prefix)
    first.put("a", b"x", 10.0)
    await first.aclose()
    second = RedisAnswerStore(redis_server.url, prefix=prefix)
    assert await second.get("a") == b"x"
    await second.aclose()


async def test_hundreds_ask_at_once_over_a_few_connections(
    stored: RedisAnswerStore, patience: Callable[[float], None]
) -> None:
    patience(5.0)
    stored.put("a", b"x", 60.0)
    await settled(stored)
    assert await asyncio.gather(*[stored.get("a") for _ in range(300)]) == [b"x"] * 300
    assert not stored.down
    # Those who leave while they wait take no connection with them.
    leaving = [asyncio.ensure_future(stored.get("a")) for _ in range(300)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    assert await stored.get("a") == b"x"


async def back(answers: RedisAnswerStore) -> None:
    async with asyncio.timeout(300):
        while answers.down:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_redis_away_and_back(own_redis: RedisServer) -> None:
    answers = RedisAnswerStore(own_redis.url)
    answers.put("a", b"x", 60.0)
    await settled(answers)
    own_redis.kill()
    assert await answers.get("a") is None
    assert answers.down
    async with within(0.1):
        for _ in range(1000):
            assert await answers.get("a") is None
            answers.put("b", b"y", 60.0)
    own_redis.start()
    await back(answers)
    assert await answers.get("b") is None  # nothing was kept meanwhile
    answers.put("b", b"y", 60.0)
    await settled(answers)
    assert await answers.get("b") == b"y"
    await answers.aclose()


async def test_redis_that_never_was_there() -> None:
    answers = RedisAnswerStore("redis://127.0.0.1:1/0")
    answers.put("a", b"x", 1.0)
    answers.evict("b")
    assert await answers.get("c") is None
    await answers.aclose()


async def test_a_redis_that_hangs_costs_one_wait(patience: Callable[[float], None]) -> None:
    patience(TIMEOUT)
    held: list[asyncio.StreamWriter] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        answers = RedisAnswerStore(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0")
        async with within(0.25):
            assert await answers.get("a") is None
        async with within(0.01):
            assert await answers.get("a") is None
        await answers.aclose()
        for writer in held:
            writer.close()


async def test_an_eviction_outlives_the_servers_absence(
    own_redis: RedisServer, patience: Callable[[float], None]
) -> None:
    """What was cut while Redis hung must not be served when it moves again."""
    answers = RedisAnswerStore(own_redis.url)
    answers.put("a", b"bad", 60.0)
    answers.put("b", b"good", 60.0)
    await settled(answers)
    assert own_redis.process is not None
    patience(TIMEOUT)
    own_redis.process.send_signal(19)  # SIGSTOP
    assert await answers.get("b") is None
    assert answers.down
    answers.evict("a")
    patience(3.0)
    own_redis.process.send_signal(18)  # SIGCONT
    await back(answers)
    assert await answers.get("b") == b"good"
    assert await answers.get("a") is None
    await answers.aclose()


async def test_an_answer_in_an_evicted_ones_place_does_not_bring_it_back(
    own_redis: RedisServer, patience: Callable[[float], None]
) -> None:
    answers = RedisAnswerStore(own_redis.url)
    answers.put("a", b"bad", 60.0)
    await settled(answers)
    assert own_redis.process is not None
    patience(TIMEOUT)
    own_redis.process.send_signal(19)
    answers.evict("a")
    answers.put("a", b"better", 60.0)
    async with asyncio.timeout(300):
        while not answers.down:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    patience(3.0)
    own_redis.process.send_signal(18)
    await back(answers)
    assert await answers.get("a") in (None, b"better")
    await answers.aclose()
