"""Budgets while Redis is away, comes back, or has lost what it held: a real server, and several gateways."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.errors import Overloaded
from gateway.quota.limits import Amounts, Limit, Limits
from gateway.quota.redis import TIMEOUT, RedisCounters
from gateway.quota.store_outage import FailoverCounters
from gateway.stores.redis_link import patience
from gateway.stores.script import Command
from tests.conftest import RedisServer

pytestmark = pytest.mark.anyio

BUDGET = Limits((Limit("tenant", "t", "dollars", "month", 900), Limit("tenant", "t", "concurrent", "now", 9)))
GATEWAYS = 3


def cost(amount: int) -> Amounts:
    return Amounts(1, 0, amount, 1)


@pytest.fixture
async def gateways(own_redis: RedisServer) -> AsyncIterator[list[FailoverCounters]]:
    """Each of which has heard of the others, as one does within a second."""
    gateways = [FailoverCounters(RedisCounters(own_redis.url)) for _ in range(GATEWAYS)]
    for number, gateway in enumerate(gateways):
        assert (await gateway.reserve(f"first-{number}", BUDGET, cost(100))).admitted
        gateway.settle(f"first-{number}", BUDGET, cost(100))
    await until(gateways, lambda one: one._store.known.gateways == GATEWAYS)
    yield gateways
    own_redis.kill()
    for gateway in gateways:
        gateway._store._settlements.clear()
    await asyncio.gather(*(gateway.aclose() for gateway in gateways))


async def until(gateways: list[FailoverCounters], true: object) -> None:
    assert callable(true)
    async with asyncio.timeout(120):
        while not all(true(gateway) for gateway in gateways):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def back(gateways: list[FailoverCounters]) -> None:
    await until(gateways, lambda one: not one._store.down)


async def knows(gateways: list[FailoverCounters], amount: int) -> None:
    key = BUDGET.keys[0]
    await until(
        gateways, lambda one: (snapshot := one._store.known.get(key)) is not None and snapshot.used == amount
    )


async def spend(gateway: FailoverCounters, name: str, amount: int, times: int) -> int:
    """How much of it is let in, settled at once."""
    spent = 0
    for i in range(times):
        if (await gateway.reserve(f"{name}-{i}", BUDGET, cost(amount))).admitted:
            gateway.settle(f"{name}-{i}", BUDGET, cost(amount))
            spent += amount
    return spent


async def test_own_lag_is_not_the_servers(own_redis: RedisServer) -> None:
    store = RedisCounters(own_redis.url)
    await store.reserve("a", BUDGET, cost(1))
    for i in range(3):
        asking = asyncio.create_task(store.reserve(f"b{i}", BUDGET, cost(1)))
        for _ in range(i + 1):
            await asyncio.sleep(0)
        time.sleep(3 * TIMEOUT)  # noqa: ASYNC251 -- this process is to stand still
        assert (await asking).admitted
        assert not store.down
    own_redis.kill()
    await store.aclose()


async def test_patience_ends_with_who_does_not_answer() -> None:
    with pytest.raises(TimeoutError):
        async with patience(0.05):
            await asyncio.sleep(60)
    async with patience(0.05):
        pass
    await asyncio.sleep(0.1)  # and nothing comes afterwards


async def test_each_goes_on_with_its_share_of_what_was_left(
    own_redis: RedisServer, gateways: list[FailoverCounters]
) -> None:
    await knows(gateways, 300)
    own_redis.kill()
    spent = [await spend(gateway, "away", 10, 100) for gateway in gateways]
    assert spent == [200] * GATEWAYS, "of 900 were 300 spent"
    refused = await gateways[0].reserve("others may have some", BUDGET, cost(100))
    assert (refused.admitted, refused.wait) == (False, None)


async def test_a_spent_budget_stays_spent_for_those_who_never_asked(
    own_redis: RedisServer, gateways: list[FailoverCounters]
) -> None:
    assert await spend(gateways[0], "all", 100, 9) == 600
    newcomer = FailoverCounters(RedisCounters(own_redis.url))
    newcomer.watch()
    await knows([newcomer, *gateways], 900)
    own_redis.kill()
    for gateway in (newcomer, *gateways):
        assert await spend(gateway, "away", 1, 3) == 0
        refused = await gateway.reserve("none is left", BUDGET, cost(1))
        assert refused.wait is not None and refused.wait == refused.reset[0]
    await newcomer.aclose()


async def test_what_was_spent_and_held_meanwhile_counts_afterwards(
    own_redis: RedisServer, gateways: list[FailoverCounters]
) -> None:
    await knows(gateways, 300)
    assert own_redis.process is not None
    assert (await gateways[0].reserve("long", BUDGET, cost(50))).admitted
    own_redis.process.send_signal(signal.SIGSTOP)
    assert await spend(gateways[0], "away", 10, 4) == 40
    assert (await gateways[1].reserve("held", BUDGET, cost(100))).admitted
    gateways[0].settle("long", BUDGET, cost(30))
    own_redis.process.send_signal(signal.SIGCONT)
    await back(gateways[:2])
    await knows(gateways, 300 + 40 + 30)
    assert (await gateways[2].reserve("x", BUDGET, cost(1))).used == (300 + 40 + 30 + 100 + 1, 2)
    gateways[1].settle("held", BUDGET, cost(70))
    gateways[2].settle("x", BUDGET, cost(1))
    await knows(gateways, 300 + 40 + 30 + 70 + 1)


async def test_a_server_that_lost_everything_is_told_again(
    own_redis: RedisServer, gateways: list[FailoverCounters]
) -> None:
    """Here, it keeps nothing."""
    await knows(gateways, 300)
    assert (await gateways[0].reserve("long", BUDGET, cost(50))).admitted
    own_redis.kill()
    own_redis.start()
    gateways[0].settle("long", BUDGET, cost(50))
    await back(gateways)
    await knows(gateways, 350)


async def test_a_settlement_is_counted_once_whose_answer_comes_late(own_redis: RedisServer) -> None:
    """After that of a renewal, which knew of it already: then the server loses everything."""
    gateway = FailoverCounters(RedisCounters(own_redis.url))
    store = gateway._store
    assert (await gateway.reserve("a", BUDGET, cost(100))).admitted
    run, ran = store._run, asyncio.Event()

    async def late(commands: Sequence[Command], **how: bool) -> list[Any]:
        answers = await run(commands, **how)
        if any(map(store._commands.settles, commands)):
            ran.set()
            await asyncio.sleep(0.1)
        return answers

    store._run = late  # type: ignore[method-assign]
    gateway.settle("a", BUDGET, cost(100))
    await ran.wait()
    await store._renew()
    await until([gateway], lambda one: not one._store._settlements)
    own_redis.kill()
    own_redis.start()
    await until([gateway], lambda one: one._store.down)
    await back([gateway])
    assert (await gateway.reserve("b", BUDGET, cost(1))).used[0] == 101
    gateway.settle("b", BUDGET, cost(1))
    await gateway.aclose()


async def test_it_closes_though_a_cancellation_is_swallowed(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the client library does while it connects."""
    store = RedisCounters(own_redis.url)
    asking = asyncio.Event()

    async def swallows() -> None:
        asking.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    monkeypatch.setattr(store, "_renew", swallows)
    store.watch()
    await asking.wait()
    async with asyncio.timeout(30):
        await store.aclose()


async def test_extensions_while_it_is_away(own_redis: RedisServer, gateways: list[FailoverCounters]) -> None:
    await knows(gateways, 300)
    assert own_redis.process is not None
    one = gateways[0]
    assert (await one.reserve("a", BUDGET, cost(50))).admitted
    await until(gateways, lambda each: each._store.known.get(BUDGET.keys[0]).counts == 350)
    own_redis.process.send_signal(signal.SIGSTOP)
    decision = await one.extend("a", BUDGET, cost(150))
    assert decision.granted == cost(150)
    assert not (await one.extend("a", BUDGET, cost(50 + 184))).admitted, "of 550 left a third is its own"
    own_redis.process.send_signal(signal.SIGCONT)
    await back(gateways[:1])
    assert (await gateways[1].reserve("b", BUDGET, cost(1))).used[0] == 300 + 150 + 1
    one.settle("a", BUDGET, cost(120))
    gateways[1].settle("b", BUDGET, cost(1))
    await knows(gateways, 300 + 121)


async def test_closed_lets_nothing_in(own_redis: RedisServer, gateways: list[FailoverCounters]) -> None:
    own_redis.kill()
    with pytest.raises(Overloaded):
        await gateways[0].reserve("x", Limits(BUDGET.each, "closed"), cost(1))


async def test_what_a_dead_gateway_held_of_a_budget_is_spent(own_redis: RedisServer) -> None:
    now = 1_900_000_000_000
    one, other = (RedisCounters(own_redis.url, now=lambda: now) for _ in range(2))
    await one.reserve("a", BUDGET, cost(800))
    now += 10_001
    assert (await other.reserve("b", BUDGET, cost(100))).used == (900, 1), (
        "its place is free, its dollars are not"
    )
    other.settle("b", BUDGET, cost(50))
    now += 3_600_001
    await other._ask_changes()
    assert (await other.reserve("c", BUDGET, cost(50))).used == (900, 1)
    assert (await other._link.redis.hget(other._commands.prefix + BUDGET.keys[0], "used")) == b"850"
    own_redis.kill()
    for store in (one, other):
        await store.aclose()


async def test_places_of_several_answers_while_the_store_is_away(
    own_redis: RedisServer, gateways: list[FailoverCounters]
) -> None:
    """What the store let in keeps all of its places in the share, and has them there again afterwards."""
    one, other, _ = gateways
    several = Amounts(1, 0, 0, 6)
    assert (await one.reserve("several", BUDGET, several)).used[1] == 6
    own_redis.kill()
    # Its share of nine places is three, and none of them is free.
    decision = await one.reserve("alone", BUDGET, Amounts(1, 0, 0, 1))
    assert (decision.admitted, decision.refused) == (False, 1)
    # Nor have the others heard of it for certain; theirs are three each at most.
    assert not (await other.reserve("four", BUDGET, Amounts(1, 0, 0, 4))).admitted
    assert (await other.reserve("three", BUDGET, Amounts(1, 0, 0, 3))).admitted
    own_redis.start()
    await back(gateways)
    one.settle("several", BUDGET, several)
    decision = await one.reserve("seven", BUDGET, Amounts(1, 0, 0, 7))
    assert (decision.admitted, decision.used[1]) == (False, 3), "the other's three are held in the store now"
    other.settle("three", BUDGET, Amounts(1, 0, 0, 3))
    await until([other], lambda gateway: not gateway._store._settlements)
    async with asyncio.timeout(60):  # once what was settled has got there
        while not (await one.reserve("nine", BUDGET, Amounts(1, 0, 0, 9))).admitted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_flush_between_two_requests_is_noticed_by_the_next(
    own_redis: RedisServer, gateways: list[FailoverCounters]
) -> None:
    """And what this process has settled since it last heard of the store is not forgotten."""
    gateway, closed = gateways[0], Limits(BUDGET.each, "closed")
    await knows(gateways, 300)
    assert await spend(gateway, "all", 100, 9) == 600
    await gateway._store._link.redis.flushall()
    for i in range(9):
        with pytest.raises(Overloaded):
            await gateway.reserve(f"after-{i}", closed, cost(100))
    await back(gateways[:1])
    assert not (await gateway.reserve("more", closed, cost(100))).admitted
    assert (await gateway.reserve("nothing", closed, cost(0))).used[0] == 900


async def test_scripts_that_are_flushed_lose_no_budget(
    own_redis: RedisServer, gateways: list[FailoverCounters]
) -> None:
    assert await spend(gateways[0], "all", 100, 9) == 600
    await gateways[0]._store._link.redis.script_flush()
    assert await spend(gateways[0], "after", 100, 9) == 0
    await back(gateways)
    assert await spend(gateways[1], "later", 100, 9) == 0


@pytest.mark.parametrize("complete", [True, False])
async def test_the_ledger_tells_a_store_that_lost_everything(
    own_redis: RedisServer, gateways: list[FailoverCounters], *, complete: bool
) -> None:
    """What others spent in the last second; and nothing twice: not what was used meanwhile, nor what was not sent."""
    await knows(gateways, 300)
    first, second = gateways[:2]
    spent = {"ledger": 300}

    async def recorded() -> dict[str, int]:
        return {BUDGET.keys[0]: spent["ledger"] if complete else 0}

    for gateway in gateways:
        gateway.restore_from(recorded, {})
    assert (await first.reserve("long", BUDGET, cost(50))).admitted
    own_redis.kill()
    first.settle("long", BUDGET, cost(50))
    spent["ledger"] += 50 + await spend(second, "away", 10, 5)
    own_redis.start()
    await back(gateways)
    assert (await second.reserve("look", BUDGET, cost(0))).used[0] == 300 + 50 + 50


async def test_older_data_is_no_new_budget(own_redis: RedisServer, gateways: list[FailoverCounters]) -> None:
    """As of a replica that had fallen behind."""
    await knows(gateways, 300)
    redis = gateways[0]._store._link.redis
    assert (await gateways[0].reserve("held", BUDGET, cost(100))).admitted
    old = {key: await redis.dump(key) async for key in redis.scan_iter()}
    renewed = gateways[0]._store._commands.renewed
    gateways[0].settle("held", BUDGET, cost(100))
    await until(gateways[:1], lambda one: one._store._commands.renewed > renewed)
    assert await spend(gateways[0], "all", 100, 9) == 500
    async with redis.pipeline(transaction=True) as pipe:
        pipe.flushall()
        for key, value in old.items():
            pipe.restore(key, 60_000, value)
        await pipe.execute()
    await spend(gateways[0], "after", 100, 9)
    await back(gateways)
    assert await spend(gateways[0], "after", 100, 9) == 0
    assert (await gateways[0].reserve("nothing", BUDGET, cost(0))).used == (900, 1), (
        "no place is held for ever"
    )


async def flushed(server: RedisServer, redis: Redis, old: dict[bytes, bytes]) -> None:
    await redis.flushall()


async def restarted(server: RedisServer, redis: Redis, old: dict[bytes, bytes]) -> None:
    server.kill()
    server.start()


async def failed_over(server: RedisServer, redis: Redis, old: dict[bytes, bytes]) -> None:
    """To a replica that was a moment behind: it has renewed everyone as often as the server that is gone."""
    server.kill()
    server.start()
    for key, value in old.items():
        await redis.restore(key, 60_000, value)


@pytest.mark.parametrize("ledgers", [False, True], ids=["no ledger", "ledgers"])
@pytest.mark.parametrize("lose", [flushed, restarted, failed_over])
async def test_what_each_has_settled_since_it_last_read_adds_up(
    own_redis: RedisServer,
    gateways: list[FailoverCounters],
    monkeypatch: pytest.MonkeyPatch,
    lose: Callable[[RedisServer, Redis, dict[bytes, bytes]], Awaitable[None]],
    *,
    ledgers: bool,
) -> None:
    """No ledger knows all of it: each gateway has one of its own."""

    async def recorded() -> dict[str, int]:
        return {BUDGET.keys[0]: 400}

    for gateway in gateways if ledgers else ():
        gateway.restore_from(recorded, {})
    await knows(gateways, 300)
    before = [one._store._commands.renewed for one in gateways]
    monkeypatch.setattr("gateway.quota.redis.RENEW_EVERY", 3600.0)
    for gateway, renewed in zip(gateways, before, strict=True):
        await until([gateway], lambda one, renewed=renewed: one._store._commands.renewed > renewed)
    async with Redis(port=own_redis.port) as redis:
        dumped = {key: await redis.dump(key) async for key in redis.scan_iter()}
        old = {key: value for key, value in dumped.items() if value is not None}
        for number, gateway in enumerate(gateways):
            assert await spend(gateway, f"late-{number}", 50, 2) == 100
        await until(gateways, lambda one: len(one._store._settled) == 2)
        await lose(own_redis, redis, old)

        closed, refused = replace(BUDGET, on_store_failure="closed"), [False] * GATEWAYS

        async def asks(number: int) -> int:
            """Until it has noticed, and is back. What it spends."""
            gateway, spent = gateways[number], 0
            while not refused[number] or gateway._store.down:
                try:
                    name = f"asks-{number}-{spent}"
                    if (await gateway.reserve(name, closed, cost(50))).admitted:
                        gateway.settle(name, closed, cost(50))
                        spent += 50
                except Overloaded:
                    refused[number] = True
                await asyncio.sleep(0.01)
            return spent

        meanwhile = sum(await asyncio.gather(*map(asks, range(GATEWAYS))))
        found = await gateways[0].reserve("look", BUDGET, cost(0))
        assert found.used[0] == 600 + meanwhile <= 900


async def test_what_was_settled_after_anothers_report_is_neither_lost_nor_counted_twice(
    own_redis: RedisServer, gateways: list[FailoverCounters], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told what one has read, though it has settled more since: then the server loses everything."""
    await knows(gateways, 300)
    for name, seconds in (("RENEW_EVERY", 3600.0), ("SHARED", 3600.0)):
        monkeypatch.setattr(f"gateway.quota.redis.{name}", seconds)
    before = [one._store._commands.renewed for one in gateways]
    for gateway, renewed in zip(gateways, before, strict=True):
        await until([gateway], lambda one, renewed=renewed: one._store._commands.renewed > renewed)
    await gateways[0]._store._renew()  # a report that there is for certain
    await asyncio.sleep(0.01)
    for number, gateway in enumerate(gateways):
        assert await spend(gateway, f"late-{number}", 50, 2) == 100
    await until(gateways, lambda one: len(one._store._settled) == 2)
    async with Redis(port=own_redis.port) as redis:
        read = (await redis.info("commandstats"))["cmdstat_zrangebyscore"]["calls"]
        for gateway in gateways:
            await gateway._store._renew()
        assert (await redis.info("commandstats"))["cmdstat_zrangebyscore"]["calls"] == read
        assert [len(one._store._settled) for one in gateways] == [2] * GATEWAYS
        await redis.flushall()
    await asyncio.gather(
        *(one.reserve(f"notices-{number}", BUDGET, cost(0)) for number, one in enumerate(gateways))
    )
    await back(gateways)
    assert (await gateways[0].reserve("look", BUDGET, cost(0))).used[0] == 600


async def test_a_second_loss_within_seconds_has_accounts_of_its_own(
    own_redis: RedisServer, gateways: list[FailoverCounters], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is promoted twice has what was told after the first loss: it must not pass for the second's."""
    await knows(gateways, 300)
    monkeypatch.setattr("gateway.quota.redis.RENEW_EVERY", 3600.0)
    async with Redis(port=own_redis.port) as redis:
        for number in range(2):
            limits = Limits((Limit("tenant", f"loss-{number}", "dollars", "month", 900),), "closed")
            dumped = {key: await redis.dump(key) async for key in redis.scan_iter()}
            for gateway in gateways:
                for i in range(2):
                    name = f"{number}-{id(gateway)}-{i}"
                    assert (await gateway.reserve(name, limits, cost(100))).admitted
                    gateway.settle(name, limits, cost(100))
            await until(gateways, lambda one: not one._store._settlements)
            await failed_over(own_redis, redis, {key: value for key, value in dumped.items() if value})

            async def used(gateway: FailoverCounters, limits: Limits = limits, number: int = number) -> int:
                """As it is once the store answers this gateway."""
                while True:
                    with suppress(Overloaded):
                        name = f"look-{number}-{id(gateway)}"
                        found = (await gateway.reserve(name, limits, cost(0))).used[0]
                        if gateway.losses > number:
                            return found
                    await asyncio.sleep(0.01)

            first = asyncio.create_task(used(gateways[0]))
            await asyncio.sleep(0.5)  # the others notice only now
            assert await asyncio.gather(first, *map(used, gateways[1:])) == [600] * GATEWAYS
            admitted = [
                (await one.reserve(f"more-{number}-{i}", limits, cost(100))).admitted
                for i in range(2)
                for one in gateways
            ]
            assert sum(admitted) == 3, "of 900 were 600 spent"


async def follow(port: int, other: int, *, then_lead: bool = True) -> None:
    """Become a replica of the other, until it has all of its data, and then a master again."""
    async with Redis(port=port) as redis:
        await redis.replicaof("127.0.0.1", other)
        async with asyncio.timeout(300):
            while (await redis.info("replication")).get("master_link_status") != "up":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        if then_lead:
            await redis.replicaof("NO", "ONE")


async def test_failovers_back_and_forth_count_nothing_twice(
    own_redis: RedisServer, gateways: list[FailoverCounters], redis_program: str, tmp_path: Path
) -> None:
    """The same server takes over twice within a minute, and has by replication what was told it the first time."""
    await knows(gateways, 300)
    (tmp_path / "other").mkdir()
    other = RedisServer(redis_program, tmp_path / "other")
    other.start()
    try:
        for number, (before, behind) in enumerate(((0, 100), (200, 100))):
            assert await spend(gateways[0], f"before-{number}", 100, before // 100) == before
            await until(gateways[:1], lambda one: not one._store._settlements)
            await follow(other.port, own_redis.port)
            renewed = max(one._store._commands.renewed for one in gateways)  # by which they know of it
            await until(gateways, lambda one, renewed=renewed: one._store._commands.renewed > renewed)
            assert await spend(gateways[1], f"behind-{number}", 100, behind // 100) == behind
            await until(gateways[1:2], lambda one: not one._store._settlements)
            losses = [one.losses for one in gateways]
            await follow(own_redis.port, other.port)
            async with asyncio.timeout(300):
                while any(one.losses == lost for one, lost in zip(gateways, losses, strict=True)):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await back(gateways)
        for number, gateway in enumerate(gateways):
            assert (await gateway.reserve(f"look-{number}", BUDGET, cost(0))).used[0] == 700
    finally:
        other.kill()


async def test_open_renews_no_budget_of_a_store_that_answers(
    own_redis: RedisServer, gateways: list[FailoverCounters]
) -> None:
    """What is open is for a store that is away."""
    limits = replace(BUDGET, on_store_failure="open")
    await knows(gateways, 300)
    for i in range(6):
        assert (await gateways[0].reserve(f"all-{i}", limits, cost(100))).admitted
        gateways[0].settle(f"all-{i}", limits, cost(100))
    await until(gateways[:1], lambda one: not one._store._settlements)
    async with Redis(port=own_redis.port) as redis:
        await redis.flushall()
    assert not (await gateways[0].reserve("again", limits, cost(100))).admitted
    assert gateways[0]._store.lost, "it is not yet told what was used"
    assert not (await gateways[0].reserve("at once", limits, cost(100))).admitted
    await back(gateways)
    assert not (await gateways[0].reserve("later", limits, cost(100))).admitted


async def test_a_budget_that_comes_back_while_the_store_is_away_counts_what_was_used_meanwhile(
    own_redis: RedisServer, gateways: list[FailoverCounters]
) -> None:
    """It was in force, others were, and it is again: by the store, and by each gateway, 300 were used; it were 600."""
    await knows(gateways, 300)
    limit = BUDGET.each[0]
    assert own_redis.process is not None
    own_redis.process.send_signal(signal.SIGSTOP)
    for gateway in gateways:  # of which one has used its part of what was left since the outage began
        await gateway.remember({(limit.key, limit.window): 300}, {limit.key: "t"})
    spent = await spend(gateways[0], "away", 100, 9)
    assert spent == 200, "a third of the 600 that were left"
    for gateway in gateways:
        await gateway.remember({}, {"another": "t"})
        await gateway.remember({(limit.key, limit.window): 600}, {limit.key: "t"})
    more = [await spend(one, f"more-{number}", 50, 9) for number, one in enumerate(gateways)]
    assert sum(more) <= limit.maximum - 600 and all(one > 0 for one in more[1:])
    own_redis.process.send_signal(signal.SIGCONT)
    await back(gateways)
    assert await spend(gateways[1], "after", 50, 9) + sum(more) <= limit.maximum - 600
    # Those 200 may count twice: as what the ledger has, and as what the outage's debts tell.
    assert 600 + sum(more) <= (await gateways[2].reserve("look", BUDGET, cost(0))).used[0] <= 800 + sum(more)


async def test_a_budget_that_was_not_in_force_for_a_while_counts_what_was_used_meanwhile(
    gateways: list[FailoverCounters],
) -> None:
    """The store knows less than the ledger; as after a tenant's limits were in another part of a cluster."""
    await knows(gateways, 300)
    limit = BUDGET.each[0]
    for gateway in gateways:
        await gateway.remember({(limit.key, limit.window): 450}, {})
    assert (await gateways[0].reserve("look", BUDGET, cost(0))).used[0] == 450
    assert await spend(gateways[1], "more", 10, 100) == limit.maximum - 450
    for gateway in gateways:  # each reload reads the ledger, which is behind the store
        await gateway.remember({(limit.key, limit.window): 450}, {})
    assert (await gateways[0].reserve("look again", BUDGET, cost(0))).used[0] == limit.maximum
