"""Redis going away, hanging and coming back, and gateways that crash: a real server, killed and stopped for real."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.errors import Overloaded
from gateway.quota import redis as module
from gateway.quota.counters import Elastic
from gateway.quota.limits import Amounts, Limit, Limits
from gateway.quota.redis import TIMEOUT, RedisCounters
from gateway.quota.store_outage import UNMETERED, FailoverCounters
from gateway.stores.store import StoreDown
from tests.conftest import RedisServer
from tests.fakes import within

pytestmark = pytest.mark.anyio

ONE = Amounts(1, 0, 0, 1)


def limits(maximum: int = 2, on_failure: str = "local") -> Limits:
    each = (
        Limit("key", "k", "requests", "minute", maximum),
        Limit("key", "k", "concurrent", "now", maximum),
    )
    return Limits(each, on_failure)  # type: ignore[arg-type]


async def eventually(test: Callable[[], Awaitable[bool]], seconds: float = 300) -> None:
    async with asyncio.timeout(seconds):
        while not await test():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


Give = Callable[[float], None]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Give:
    """A busy machine must not look like a server that is away; a test about that gives less."""

    def give(seconds: float) -> None:
        monkeypatch.setattr(module, "TIMEOUT", seconds)

    give(60.0)
    return give


@pytest.fixture
async def store(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisCounters]:
    store = RedisCounters(own_redis.url)
    yield store
    own_redis.kill()
    monkeypatch.setattr(module, "SECONDS_TO_FLUSH", 0.1)
    store._settlements.clear()
    await store.aclose()


@pytest.fixture
def failover(store: RedisCounters) -> FailoverCounters:
    return FailoverCounters(store)


async def test_open_lets_everything_in(own_redis: RedisServer, failover: FailoverCounters) -> None:
    on = limits(1, "open")
    assert (await failover.reserve("a", on, ONE)).used == (1, 1)
    own_redis.kill()
    async with within(TIMEOUT + 0.1):
        for i in range(20):
            assert await failover.reserve(str(i), on, ONE) is UNMETERED


async def test_closed_refuses_with_the_time_to_try_again(
    own_redis: RedisServer, failover: FailoverCounters
) -> None:
    own_redis.kill()
    with pytest.raises(Overloaded) as refused:
        await failover.reserve("a", limits(1, "closed"), ONE)
    assert (refused.value.status, refused.value.code) == (503, "store_unavailable")
    assert refused.value.retry_after is not None
    assert 0 < refused.value.retry_after < 5


async def test_local_enforces_the_same_limits(own_redis: RedisServer, failover: FailoverCounters) -> None:
    own_redis.kill()
    on = limits(2, "local")
    decisions = await asyncio.gather(*(failover.reserve(str(i), on, ONE) for i in range(9)))
    assert [decision.admitted for decision in decisions] == [True] * 2 + [False] * 7
    failover.settle("0", on, ONE)
    assert (await failover.reserve("x", limits(3, "local"), ONE)).used == (3, 2)


async def test_back_again_with_what_it_held(
    own_redis: RedisServer, failover: FailoverCounters, patience: Give
) -> None:
    on = limits(50)
    assert own_redis.process is not None
    assert (await failover.reserve("before", on, ONE)).used == (1, 1)
    patience(TIMEOUT)
    own_redis.process.send_signal(signal.SIGSTOP)
    try:
        async with within(TIMEOUT + 0.15):
            decisions = await asyncio.gather(*(failover.reserve(f"hung-{i}", on, ONE) for i in range(5)))
        assert {decision.admitted for decision in decisions} == {True}
        async with within(0.05):
            assert (await failover.reserve("later", on, ONE)).used == (7, 7), "only the first pay"
        failover.settle("before", on, ONE)
    finally:
        patience(60.0)
        own_redis.process.send_signal(signal.SIGCONT)

    async def back() -> bool:
        return not failover._store.down

    await eventually(back)
    # The reservations that hung came through in the end, and were given back; 'before' was settled.
    decision = await failover.reserve("after", on, ONE)
    assert decision.used[1] == 7, "what was let in meanwhile is under way"
    for i in range(5):
        failover.settle(f"hung-{i}", on, ONE)
    assert (await failover.reserve("last", on, ONE)).used[1] == 3


async def test_a_server_that_was_long_away_is_found_soon(
    own_redis: RedisServer, store: RedisCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.stores.redis_link.PROBE_EVERY", 0.02)
    own_redis.kill()
    with pytest.raises(StoreDown):
        await store.reserve("a", limits(), ONE)
    await asyncio.sleep(0.2)  # in which several probes fail
    own_redis.start()

    async def back() -> bool:
        return not store.down

    await eventually(back)


async def test_a_server_that_hangs_is_said_to_be_slow(
    own_redis: RedisServer, store: RedisCounters, patience: Give
) -> None:
    patience(TIMEOUT)
    assert own_redis.process is not None
    own_redis.process.send_signal(signal.SIGSTOP)
    with pytest.raises(StoreDown, match=r"too slow|last asked"):
        await store.reserve("a", limits(), ONE)


@pytest.mark.parametrize("on_failure", ["open", "closed", "local"])
async def test_under_load_nobody_waits_for_a_dead_server(
    own_redis: RedisServer, failover: FailoverCounters, on_failure: str
) -> None:
    on = limits(10**6, on_failure)
    closed, stop = 0, False

    async def load(name: int) -> None:
        nonlocal closed
        turn = 0
        while not stop:
            turn += 1
            try:
                async with within(TIMEOUT + 0.15):
                    await failover.reserve(f"{name}-{turn}", on, ONE)
                failover.settle(f"{name}-{turn}", on, ONE)
            except Overloaded:
                closed += 1
            await asyncio.sleep(0.001)

    tasks = [asyncio.create_task(load(i)) for i in range(4)]
    await asyncio.sleep(0.05)
    own_redis.kill()
    await asyncio.sleep(0.1)
    assert failover._store.down
    await asyncio.to_thread(own_redis.start)

    async def back() -> bool:
        return not failover._store.down

    await eventually(back)
    await asyncio.sleep(0.05)
    stop = True
    await asyncio.gather(*tasks)
    assert bool(closed) == (on_failure == "closed")
    assert not failover._held
    decision = await failover.reserve("after", on, ONE)
    assert decision.used[0] > 4, "counted in Redis again"
    assert decision.used[1] == 1, "and all is settled"


async def test_a_reservation_that_arrives_after_it_was_given_up_is_void(store: RedisCounters) -> None:
    on = limits(9)
    store._put("late", on, Amounts(0, 0, 0), void=True)
    with pytest.raises(StoreDown):
        await store.reserve("late", on, ONE)

    async def back() -> bool:
        return not store.down

    await eventually(back)
    assert (await store.reserve("next", on, ONE)).used == (1, 1)


async def test_restarted_with_nothing(own_redis: RedisServer, failover: FailoverCounters) -> None:
    on = limits(50)
    await failover.reserve("a", on, ONE)
    own_redis.kill()
    await failover.reserve("b", on, ONE)
    own_redis.start()

    async def back() -> bool:
        return (await failover.reserve(secrets.token_hex(4), on, ONE)).used[
            0
        ] > 0 and not failover._store.down

    await eventually(back)
    failover.settle("a", on, ONE)
    assert (await failover.reserve("c", on, ONE)).admitted


async def test_a_quick_restart_is_no_new_beginning(
    own_redis: RedisServer, failover: FailoverCounters
) -> None:
    async def registered() -> bool:
        return failover._store._commands.renewed >= 0

    assert (await failover.reserve("a", limits(), ONE)).admitted
    await eventually(registered)
    own_redis.kill()
    own_redis.start()
    async with within(0.3):
        assert (await failover.reserve("b", limits(), ONE)).used == (2, 2)

    async def back() -> bool:
        return not failover._store.down

    await eventually(back)
    assert not (await failover.reserve("c", limits(), ONE)).admitted


async def test_a_server_that_only_reads_is_down(
    own_redis: RedisServer, store: RedisCounters, caplog: pytest.LogCaptureFixture
) -> None:
    await store.reserve("a", limits(9), ONE)
    await store._link.redis.config_set("maxmemory", "1")
    with pytest.raises(StoreDown, match="maxmemory"):
        await store.reserve("b", limits(9), ONE)
    assert store.down
    store.settle("a", limits(9), ONE)
    await store._link.redis.config_set("maxmemory", "0")

    async def back() -> bool:
        return not store.down

    await eventually(back)
    assert (await store.reserve("c", limits(9), ONE)).used == (2, 1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


async def test_leaving_while_it_reserves_gives_back(store: RedisCounters) -> None:
    on = limits(50)
    await store.reserve("first", on, ONE)
    for steps in range(8):
        task = asyncio.create_task(store.reserve(f"left-{steps}", on, ONE))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def one_left() -> bool:
        held = await store._link.redis.hgetall(store._commands.prefix + on.keys[1])
        return sum(map(int, held.values())) == 1

    await eventually(one_left)
    assert set(await store._link.redis.hgetall(store._commands.reserved)) - {b"#"} == {b"first"}


async def test_a_crashed_gateway_holds_nothing(redis_server: RedisServer) -> None:
    now, prefix = 1_900_000_000_000, f"{{{secrets.token_hex(4)}}}:"
    one, other = (RedisCounters(redis_server.url, now=lambda: now, prefix=prefix) for _ in range(2))
    on = Limits(
        (Limit("tenant", "t", "concurrent", "now", 5), Limit("tenant", "t", "dollars", "month", 1000))
    )
    for i in range(5):
        await one.reserve(str(i), on, Amounts(1, 0, 150, 1))
    one.settle("4", on, Amounts(1, 0, 100, 1))
    assert (await one.reserve("4b", on, Amounts(1, 0, 0, 1))).used == (5, 700)
    assert not (await other.reserve("x", on, Amounts(1, 0, 0, 1))).admitted
    now += 10_001
    assert (await other.reserve("x", on, Amounts(1, 0, 10, 1))).used == (1, 710), (
        "its places are free; what it may have spent stays"
    )
    # It was not dead, only away: what it holds counts again, and nothing has become negative.
    await one._ask_changes()
    assert (await other.reserve("y", on, ONE)).refused == 0
    for i in ("0", "1", "2", "3"):
        one.settle(i, on, Amounts(1, 0, 100, 1))
    one.settle("4b", on, Amounts(1, 0, 0, 1))
    await one.aclose()
    assert (await other.reserve("y", on, ONE)).used == (2, 510)
    await other.aclose()


async def test_nobody_waits_for_what_a_crashed_gateway_holds(redis_server: RedisServer) -> None:
    now, prefix = 1_900_000_000_000, f"{{{secrets.token_hex(4)}}}:"
    one, other = (RedisCounters(redis_server.url, now=lambda: now, prefix=prefix) for _ in range(2))
    on = Limits((Limit("tenant", "t", "dollars", "month", 1000),))
    elastic = Elastic(Amounts(1, 0, 10), Amounts(1, 0, 300))
    await one.reserve("crashed", on, Amounts(1, 0, 800))
    refused = await other.reserve("a", on, Amounts(1, 0, 400), elastic)
    assert (refused.admitted, refused.wait) == (False, None), "800 may be released soon"
    now += 10_001
    granted = await other.reserve("a", on, Amounts(1, 0, 400), elastic)
    assert granted.granted == Amounts(1, 0, 200), "all that is left, though less than usual"
    refused = await other.reserve("b", on, Amounts(1, 0, 400), elastic)
    assert (refused.admitted, refused.wait) == (False, None), "a live one holds 200"
    other.settle("a", on, Amounts(1, 0, 200))
    refused = await other.reserve("b", on, Amounts(1, 0, 400), elastic)
    assert not refused.admitted and refused.wait == refused.reset[0], "not before the next month"
    await one.aclose()
    await other.aclose()


async def test_a_live_gateway_says_so(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.quota.redis.RENEW_EVERY", 0.02)
    store = RedisCounters(redis_server.url, prefix=f"{{{secrets.token_hex(4)}}}:")
    await store.reserve("a", limits(), ONE)
    first = await store._link.redis.zscore(store._commands.instances, store._commands.instance)

    async def renewed() -> bool:
        last = await store._link.redis.zscore(store._commands.instances, store._commands.instance)
        return float(last) > float(first)

    await eventually(renewed)
    await store.aclose()


async def test_closing_settles_what_is_left(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_FLUSH", 60.0)
    prefix = f"{{{secrets.token_hex(4)}}}:"
    store, other = (RedisCounters(redis_server.url, prefix=prefix) for _ in range(2))
    on = limits(400)
    await asyncio.gather(*(store.reserve(str(i), on, ONE) for i in range(300)))
    for i in range(300):
        store.settle(str(i), on, ONE)
    await store.aclose()
    assert (await other.reserve("x", on, ONE)).used == (301, 1)
    with pytest.raises(StoreDown):
        await store.reserve("late", on, ONE)
    store.settle("late", on, ONE)
    await other.aclose()


async def test_closing_without_a_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.quota.redis.SECONDS_TO_FLUSH", 0.1)
    store = RedisCounters("redis://127.0.0.1:1/0")
    with pytest.raises(StoreDown):
        await store.reserve("a", limits(), ONE)
    async with within(1):
        await store.aclose()
    await RedisCounters("redis://127.0.0.1:1/0").aclose()


async def test_everything_expires(redis_server: RedisServer) -> None:
    store = RedisCounters(redis_server.url, prefix=f"{{{secrets.token_hex(4)}}}:")
    each = (
        *limits().each,
        Limit("key", "k", "tokens", "day", 9),
        Limit("key", "k", "dollars", "month", 9),
    )
    on = Limits(each)
    await store.reserve("a", on, Amounts(1, 3, 3, 1))
    store.settle("a", on, Amounts(1, 1, 1, 1))
    await store.reserve("b", on, Amounts(1, 3, 3, 1))
    await store._ask_changes()
    keys = [
        key async for key in store._link.redis.scan_iter(store._commands.prefix.replace("}", "[}]") + "*")
    ]
    assert len(keys) == 7
    for key in keys:
        assert 0 < await store._link.redis.pttl(key) <= 33 * 86_400_000
    await store.aclose()
