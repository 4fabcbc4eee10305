"""Counters in memory and in Redis: the same decisions for the same story, and never more than the limit."""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from gateway.quota.counters import Counters, Elastic, QuotaDecision
from gateway.quota.limits import Amounts, Limit, Limits
from gateway.quota.memory import MemoryCounters
from gateway.quota.redis import RedisCounters
from tests.conftest import RedisServer
from tests.examples import examples

pytestmark = pytest.mark.anyio

NOTHING = Amounts(0, 0, 0)


class Clock:
    """Milliseconds of Unix time, moved by hand."""

    def __init__(self, at: datetime = datetime(2027, 3, 10, 12, 0, 1, tzinfo=UTC)) -> None:
        self.ms = int(at.timestamp() * 1000)

    def __call__(self) -> int:
        return self.ms

    def seconds(self) -> float:
        # Half a millisecond more, so that the float's last digit does not matter.
        return (self.ms + 0.5) / 1000


def limit(quantity: str, window: str, maximum: int, owner: str = "k") -> Limit:
    return Limit("key", owner, quantity, window, maximum)  # type: ignore[arg-type]


def limits(*each: Limit) -> Limits:
    return Limits(each)


Make = Callable[[Clock], Counters]


@pytest.fixture(params=["memory", "redis"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    made: list[Counters] = []

    def one(clock: Clock) -> Counters:
        if request.param == "memory":
            made.append(MemoryCounters(clock=clock.seconds))
        else:
            server: RedisServer = request.getfixturevalue("redis_server")
            made.append(RedisCounters(server.url, now=clock, prefix=f"{{{secrets.token_hex(4)}}}:"))
        return made[-1]

    yield one
    for counters in made:
        await counters.aclose()


async def take(
    counters: Counters, id: str, on: Limits, tokens: int = 0, nanodollars: int = 0, answers: int = 1
) -> QuotaDecision:
    return await counters.reserve(id, on, Amounts(1, tokens, nanodollars, answers))


async def test_a_copy_counts_what_counts_now_and_counts_apart() -> None:
    clock = Clock()
    counters = MemoryCounters(clock=clock.seconds)
    on = limits(limit("requests", "minute", 3), limit("tokens", "day", 100), limit("concurrent", "now", 2))
    await take(counters, "a", on, tokens=40)
    copy = counters.copied(on)
    assert (await take(copy, "b", on, tokens=40)).used == (2, 80, 2)
    assert (await take(copy, "c", on, tokens=40)).admitted is False
    copy.settle("b", on, Amounts(1, 60, 0, 1))
    assert (await take(counters, "d", on, tokens=40)).used == (2, 80, 2)
    counters.settle("a", on, Amounts(1, 40, 0, 1))
    clock.ms += 62_000
    assert (await take(counters.copied(on), "e", on)).used == (1, 80, 2)


async def test_requests_per_minute_slide(make: Make) -> None:
    clock = Clock()
    counters, on = make(clock), limits(limit("requests", "minute", 3))
    assert [(await take(counters, str(i), on)).used for i in range(3)] == [(1,), (2,), (3,)]
    refused = await take(counters, "4", on)
    assert (refused.admitted, refused.refused, refused.wait, refused.used) == (False, 0, 61.0, (3,))
    clock.ms += 60_999
    assert not (await take(counters, "5", on)).admitted
    clock.ms += 1
    assert (await take(counters, "6", on)).used == (1,)


async def test_a_steady_pace_just_below_the_limit_is_never_refused(make: Make) -> None:
    clock = Clock()
    counters, on = make(clock), limits(limit("requests", "minute", 60))
    for i in range(3 * 58):  # 58 a minute
        assert (await take(counters, str(i), on)).admitted, i
        clock.ms += 60_000 // 58


async def test_the_wait_is_until_enough_has_left(make: Make) -> None:
    clock = Clock()
    counters, on = make(clock), limits(limit("tokens", "minute", 100))
    for amount in 30, 30, 40:
        assert (await take(counters, str(amount), on, amount)).admitted
        counters.settle(str(amount), on, Amounts(1, amount, 0))
        clock.ms += 10_000
    refused = await take(counters, "x", on, 60)
    assert refused.wait == 41.0  # the second of them leaves 61 s after its slot began
    assert refused.reset == (51.0,)
    clock.ms += 41_000
    assert (await take(counters, "x", on, 60)).used == (100,)


async def test_what_requests_under_way_hold_may_be_free_any_moment(make: Make) -> None:
    counters, on = make(Clock()), limits(limit("tokens", "minute", 100))
    await take(counters, "a", on, 30)
    await take(counters, "b", on, 70)
    assert (await take(counters, "c", on, 60)).wait is None
    counters.settle("a", on, Amounts(1, 30, 0))
    assert (await take(counters, "c", on, 60)).wait is None
    assert (await take(counters, "c", on, 71)).wait == 61.0
    counters.settle("b", on, Amounts(1, 70, 0))
    assert (await take(counters, "c", on, 60)).wait == 61.0


async def test_settling_corrects_the_slot_of_admission(make: Make) -> None:
    clock = Clock()
    counters, on = make(clock), limits(limit("tokens", "minute", 100))
    await take(counters, "a", on, 100)
    clock.ms += 20_000
    counters.settle("a", on, Amounts(1, 30, 0))
    assert (await take(counters, "b", on, 70)).used == (100,)
    clock.ms += 41_000
    assert (await take(counters, "c", on, 31)).admitted is False
    assert (await take(counters, "c", on, 30)).used == (100,)


async def test_settled_too_late_is_no_debt_and_no_charge(make: Make) -> None:
    clock = Clock()
    counters, on = make(clock), limits(limit("tokens", "minute", 100))
    await take(counters, "a", on, 100)
    clock.ms += 70_000
    counters.settle("a", on, Amounts(1, 30, 0))
    assert (await take(counters, "b", on, 90)).used == (90,)
    assert not (await take(counters, "c", on, 90)).admitted


async def test_all_or_nothing(make: Make) -> None:
    counters = make(Clock())
    on = limits(limit("requests", "minute", 5), limit("tokens", "minute", 10), limit("concurrent", "now", 9))
    assert (await take(counters, "a", on, 10)).used == (1, 10, 1)
    assert [(await take(counters, str(i), on, 1)).refused for i in range(9)] == [1] * 9
    assert (await take(counters, "b", on, 0)).used == (2, 10, 2)


async def test_concurrent_requests(make: Make) -> None:
    counters, on = make(Clock()), limits(limit("concurrent", "now", 2))
    await take(counters, "a", on)
    await take(counters, "b", on)
    refused = await take(counters, "c", on)
    assert (refused.admitted, refused.wait) == (False, None)
    counters.settle("a", on, Amounts(1, 0, 0))
    assert (await take(counters, "c", on)).used == (2,)


async def test_answers_of_one_request_are_as_many(make: Make) -> None:
    counters, on = make(Clock()), limits(limit("concurrent", "now", 5), limit("requests", "minute", 9))
    assert (await take(counters, "a", on, answers=4)).used == (4, 1)
    refused = await take(counters, "b", on, answers=2)
    assert (refused.admitted, refused.refused, refused.wait, refused.used) == (False, 0, None, (4, 1))
    assert (await take(counters, "c", on, answers=1)).used == (5, 2)
    assert (await take(counters, "c", on, answers=1)).used == (5, 2), "a repetition changes nothing"
    counters.settle("a", on, Amounts(1, 0, 0, 4))
    assert (await take(counters, "b", on, answers=4)).used == (5, 3)
    assert not (await take(counters, "d", on, answers=1)).admitted
    counters.settle("b", on, NOTHING)
    counters.settle("c", on, NOTHING)
    assert (await take(counters, "d", on, answers=5)).used == (5, 4), (
        "all that was held is free, whatever was used"
    )


async def test_places_are_not_had_by_halves(make: Make) -> None:
    """Of tokens less will do; an answer is computed or not."""
    counters = make(Clock())
    on = limits(limit("concurrent", "now", 5), limit("tokens", "minute", 100))
    await take(counters, "a", on, 50, answers=3)
    least, usual = Amounts(1, 10, 0, 3), Amounts(1, 20, 0, 3)
    for share in (1, 4):
        refused = await counters.reserve("b", on, Amounts(1, 90, 0, 3), Elastic(least, usual, share))
        assert (refused.admitted, refused.refused, refused.used) == (False, 0, (3, 50))
    counters.settle("a", on, Amounts(1, 50, 0, 3))
    granted = (await counters.reserve("b", on, Amounts(1, 90, 0, 3), Elastic(least, usual, 4))).granted
    assert granted == Amounts(1, 20, 0, 3)


async def test_settling_twice_or_for_nothing_changes_nothing(make: Make) -> None:
    counters = make(Clock())
    on = limits(limit("tokens", "minute", 100), limit("dollars", "day", 1000), limit("concurrent", "now", 3))
    counters.settle("never", on, Amounts(1, 90, 900))
    assert (await take(counters, "a", on, 10, 100)).used == (10, 100, 1)
    assert (await take(counters, "b", on, 10, 100)).used == (20, 200, 2)
    for _ in range(3):
        counters.settle("a", on, Amounts(1, 5, 50))
    assert (await take(counters, "c", on, 0, 0)).used == (15, 150, 2)


async def test_reserving_twice_counts_once(make: Make) -> None:
    counters, on = make(Clock()), limits(limit("tokens", "minute", 100))
    for _ in range(3):
        decision = await take(counters, "a", on, 60)
        assert (decision.admitted, decision.used) == (True, (60,))


@pytest.mark.parametrize(
    ("window", "before", "after"),
    [
        ("day", datetime(2027, 3, 10, 23, 59, 59, tzinfo=UTC), datetime(2027, 3, 11, tzinfo=UTC)),
        ("month", datetime(2027, 1, 31, 23, 59, 59, tzinfo=UTC), datetime(2027, 2, 1, tzinfo=UTC)),
        ("month", datetime(2028, 2, 29, 23, 59, 59, tzinfo=UTC), datetime(2028, 3, 1, tzinfo=UTC)),
        ("month", datetime(2027, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)),
    ],
)
async def test_a_budget_ends_with_its_window(
    make: Make, window: str, before: datetime, after: datetime
) -> None:
    clock = Clock(before)
    counters, on = make(clock), limits(limit("dollars", window, 1000))
    await take(counters, "a", on, 0, 600)
    await take(counters, "late", on, 0, 400)
    refused = await take(counters, "b", on, 0, 1)
    assert (refused.wait, refused.reset) == (None, (1.0,)), "only held, not spent"
    counters.settle("a", on, Amounts(1, 0, 600))
    refused = await take(counters, "b", on, 0, 500)
    assert refused.wait == 1.0
    clock.ms = int(after.timestamp() * 1000) - 1
    assert not (await take(counters, "b", on, 0, 500)).admitted
    clock.ms += 1
    assert (await take(counters, "b", on, 0, 500)).used == (500,)
    counters.settle("late", on, Amounts(1, 0, 300))
    assert (await take(counters, "c", on, 0, 0)).used == (500,), "it belongs to the window that let it in"


async def test_counters_of_two_owners_are_apart(make: Make) -> None:
    counters = make(Clock())
    for owner in "k", "k2", "k:requests":
        assert (await take(counters, owner, limits(limit("requests", "minute", 1, owner)))).admitted


async def test_dollars_beyond_32_bits(make: Make) -> None:
    counters, on = make(Clock()), limits(limit("dollars", "month", 10**15))
    assert (await take(counters, "a", on, 0, 10**15 - 1)).used == (10**15 - 1,)
    counters.settle("a", on, Amounts(1, 0, 10**15 - 2))
    assert (await take(counters, "b", on, 0, 2)).admitted
    assert not (await take(counters, "c", on, 0, 1)).admitted


async def test_as_much_as_there_is_room_for(make: Make) -> None:
    counters = make(Clock())
    on = limits(limit("tokens", "minute", 100), limit("dollars", "day", 1000), limit("tokens", "day", 70))
    elastic = Elastic(Amounts(1, 10, 100), Amounts(1, 10, 100))
    decision = await counters.reserve("a", on, Amounts(1, 60, 5000), elastic)
    assert (decision.granted, decision.used) == (Amounts(1, 60, 1000), (60, 1000, 60))
    counters.settle("a", on, Amounts(1, 55, 800))
    decision = await counters.reserve("b", on, Amounts(1, 60, 5000), elastic)
    assert decision.granted == Amounts(1, 15, 200)
    refused = await counters.reserve("c", on, Amounts(1, 60, 5000), elastic)
    assert (refused.admitted, refused.refused, refused.wait, refused.granted) == (False, 0, None, None) or (
        refused.refused in (1, 2)
    )
    counters.settle("b", on, Amounts(1, 15, 200))
    refused = await counters.reserve("c", on, Amounts(1, 60, 5000), elastic)
    assert refused.refused in (1, 2)
    assert refused.wait == 43_199.0


async def test_nobody_is_cut_short_for_what_will_come_free(make: Make) -> None:
    """Of a budget; what is spent stays spent, and the rest is better than nothing."""
    counters, on = make(Clock()), limits(limit("dollars", "day", 1000))
    elastic = Elastic(Amounts(1, 0, 10), Amounts(1, 0, 300))
    assert (await counters.reserve("a", on, Amounts(1, 0, 900))).admitted
    refused = await counters.reserve("b", on, Amounts(1, 0, 400), elastic)
    assert (refused.admitted, refused.wait) == (False, None)
    counters.settle("a", on, Amounts(1, 0, 900))
    assert (await counters.reserve("b", on, Amounts(1, 0, 400), elastic)).granted == Amounts(1, 0, 100)


async def test_who_asks_for_more_than_he_needs_leaves_most_of_the_room(make: Make) -> None:
    counters, on = make(Clock()), limits(limit("dollars", "day", 1000))
    elastic = Elastic(Amounts(1, 0, 10), Amounts(1, 0, 100), divisor=4)
    got = []
    for i in range(12):
        decision = await counters.reserve(str(i), on, Amounts(1, 0, 10_000), elastic)
        got.append(decision.granted.nanodollars if decision.granted else 0)
    assert got == [250, 187, 140, 105, 100, 100, 100, 0, 0, 0, 0, 0]


async def test_an_extension_holds_more_or_leaves_all_as_it_was(make: Make) -> None:
    clock = Clock()
    counters = make(clock)
    on = limits(
        *(limit("requests", "minute", 1), limit("tokens", "minute", 100)),
        *(limit("dollars", "day", 1000), limit("concurrent", "now", 3)),
    )
    assert (await counters.extend("a", on, Amounts(1, 1, 1))) == QuotaDecision(False)
    await counters.reserve("a", on, Amounts(1, 40, 400, 2))
    for _ in range(2):  # a repetition changes nothing
        decision = await counters.extend("a", on, Amounts(1, 70, 600, 2))
        assert (decision.granted, decision.used) == (Amounts(1, 70, 600, 2), (1, 70, 600, 2))
    refused = await counters.extend("a", on, Amounts(1, 70, 1001, 2))
    assert (refused.admitted, refused.refused) == (False, 2)
    elastic = Elastic(Amounts(1, 70, 600), Amounts(1, 70, 600))
    granted = (await counters.extend("a", on, Amounts(1, 300, 9000, 2), elastic)).granted
    assert granted == Amounts(1, 100, 1000, 2)
    clock.ms += 30_000
    assert (await counters.extend("a", on, Amounts(1, 80, 700, 2))).used == (1, 80, 700, 2)
    counters.settle("a", on, Amounts(1, 75, 650))
    assert (await counters.extend("a", on, Amounts(1, 1, 1))) == QuotaDecision(False), "it is over"
    probe = limits(*on.each[1:])
    assert (await counters.reserve("b", probe, Amounts(0, 0, 0))).used == (75, 650, 0)


async def test_an_extension_of_a_long_request_counts_when_it_is_made(make: Make) -> None:
    clock = Clock()
    counters, on = make(clock), limits(limit("tokens", "minute", 100))
    await counters.reserve("a", on, Amounts(1, 90, 0))
    clock.ms += 70_000
    assert (await take(counters, "b", on, 60)).used == (60,)
    assert not (await counters.extend("a", on, Amounts(1, 91, 0))).admitted
    assert (await counters.extend("a", on, Amounts(1, 30, 0))).used == (90,)


async def test_what_is_used_beyond_the_limit_is_a_debt(make: Make) -> None:
    clock = Clock()
    counters, on = make(clock), limits(limit("tokens", "minute", 100), limit("tokens", "day", 1000))
    await take(counters, "a", on, 50)
    await take(counters, "b", on, 50)
    counters.settle("a", on, Amounts(1, 50, 0))
    counters.settle("b", on, Amounts(1, 270, 0))
    for _ in range(2):
        clock.ms += 60_000
        assert not (await take(counters, "c", on, 90)).admitted
        clock.ms += 5_000
    # Three minutes and a fifth of one have been used.
    decision = await take(counters, "c", on, 90)
    assert not decision.admitted
    clock.ms += 65_000
    assert (await take(counters, "c", on, 80)).used == (100, 400)


async def test_what_a_long_request_used_beyond_its_reservation_counts_when_it_ends(make: Make) -> None:
    clock = Clock()
    counters, on = make(clock), limits(limit("tokens", "minute", 100))
    await take(counters, "a", on, 50)
    clock.ms += 100_000
    counters.settle("a", on, Amounts(1, 110, 0))
    assert (await take(counters, "b", on, 40)).used == (100,)


# One story told to both.

STORY = limits(
    limit("requests", "minute", 8),
    limit("tokens", "minute", 50),
    limit("tokens", "day", 120),
    limit("concurrent", "now", 4),
    limit("dollars", "month", 100),
)
# Few names and few figures, so that requests meet: sums that fit exactly, and slots that are just leaving.
names = st.integers(0, 7)
figures = st.sampled_from([0, 1, 5, 10, 20, 25, 40])
less = st.none() | st.tuples(figures, figures, st.sampled_from([1, 1, 2, 4]))
answers = st.sampled_from([1, 1, 0, 2, 3, 4])
reserves = st.tuples(st.just("reserve"), names, figures, figures, answers, less)
extends = st.tuples(st.just("extend"), names, figures, figures, answers, less)
settles = st.tuples(st.just("settle"), names, figures, figures, answers)
passes = st.tuples(
    st.just("pass"), st.sampled_from([1, 999, 4_000, 5_000, 20_000, 55_000, 60_000, 61_000, 43_200_000])
)


def elastic_of(amounts: Amounts, less: tuple[int, int, int] | None) -> Elastic | None:
    if less is None:
        return None
    least, usual = (Amounts(1, figure, figure, amounts.answers) for figure in less[:2])
    return Elastic(least, Amounts(*map(max, zip(least, usual, strict=True))), less[2])


subset = st.sets(st.integers(0, 4), min_size=1)
starts = st.builds(
    lambda month, left: datetime(2027 + month // 12, month % 12 + 1, 1, tzinfo=UTC) - timedelta(seconds=left),
    st.integers(1, 72),
    st.sampled_from([0, 1, 30, 90, 86_400, 10**6]),
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an answer of Redis may take longer than a gateway in service would wait for it."""
    monkeypatch.setattr("gateway.quota.redis.TIMEOUT", 60.0)


@settings(max_examples=examples(150))
@given(
    chosen=subset,
    story=st.lists(st.one_of(reserves, reserves, extends, settles, passes), min_size=10, max_size=40),
    start=starts,
)
def test_redis_and_memory_agree(
    redis_server: RedisServer,
    chosen: set[int],
    story: list[Any],
    start: datetime,
) -> None:
    on = limits(*(STORY.each[i] for i in sorted(chosen)))

    async def tell() -> None:
        clock = Clock(start)
        memory = MemoryCounters(clock=clock.seconds)
        redis = RedisCounters(redis_server.url, now=clock, prefix=f"{{{secrets.token_hex(4)}}}:")
        try:
            for what, *rest in story:
                if what == "pass":
                    clock.ms += rest[0]
                    # An instance whose heartbeat stops is tested apart; this one lives.
                    await redis._ask_changes()
                    continue
                name, amounts = str(rest[0]), Amounts(1, *rest[1:4])
                if what == "settle":
                    memory.settle(name, on, amounts)
                    redis.settle(name, on, amounts)
                    continue
                if what == "extend" and not on.settles:
                    continue  # there is nothing to extend
                elastic = elastic_of(amounts, rest[4])
                decisions = [
                    await getattr(counters, what)(name, on, amounts, elastic) for counters in (memory, redis)
                ]
                assert decisions[0] == decisions[1]
        finally:
            await redis.aclose()
            assert not redis._settlements

    asyncio.run(tell())


@settings(max_examples=examples(200))
@given(
    story=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 1_000, 4_999, 5_000, 19_999, 54_000, 55_000, 59_999]),
            st.sampled_from([1, 20, 40, 60, 100]),
            st.booleans(),
            st.sampled_from([0, 1, 20, 60]),
        ),
        min_size=5,
        max_size=40,
    )
)
def test_no_minute_anywhere_has_more_than_the_limit(story: list[tuple[int, int, bool, int]]) -> None:
    """Wherever the 60 s are laid, and whatever was settled below its reservation meanwhile."""
    clock = Clock()
    counters, on = MemoryCounters(clock=clock.seconds), limits(limit("tokens", "minute", 100))
    used: list[list[int]] = []
    for i, (gap, amount, settled, share) in enumerate(story):
        clock.ms += gap
        if counters.reserve_now(str(i), on, Amounts(1, amount, 0)).admitted:
            actual = min(share, amount) if settled else amount
            if settled:
                counters.settle(str(i), on, Amounts(1, actual, 0))
            used.append([clock.ms, actual])
    for begin, _ in used:
        assert sum(amount for at, amount in used if begin <= at < begin + 60_000) <= 100


@settings(max_examples=examples(150))
@given(
    story=st.lists(
        st.tuples(
            *(st.booleans(), st.integers(0, 5), st.sampled_from([1, 25, 50, 99])),
            *(st.sampled_from([0, 20, 50]), st.integers(1, 5)),
        ),
        min_size=10,
        max_size=40,
    )
)
def test_what_is_spent_and_what_is_held_never_pass_the_limit(
    story: list[tuple[bool, int, int, int, int]],
) -> None:
    """For requests that use no more than they have reserved, in whatever order they begin and end."""
    counters = MemoryCounters(clock=Clock().seconds)
    on = limits(limit("dollars", "day", 200), limit("concurrent", "now", 5))
    held: dict[str, tuple[int, int]] = {}
    spent = 0
    for begins, number, amount, used, answers in story:
        name = str(number)
        if begins and name not in held:
            in_flight = sum(several for _, several in held.values())
            room = spent + _sum(held) + amount <= 200 and in_flight + answers <= 5
            assert counters.reserve_now(name, on, Amounts(1, 0, amount, answers)).admitted == room
            if room:
                held[name] = amount, answers
        elif not begins and name in held:
            reserved, answers = held.pop(name)
            spent += min(used, reserved)
            counters.settle(name, on, Amounts(1, 0, min(used, reserved), answers))
        assert spent + _sum(held) <= 200


def _sum(held: dict[str, tuple[int, int]]) -> int:
    return sum(amount for amount, _ in held.values())


# Several gateways.


async def _hammer(url: str, prefix: str, calls: int, ready: object, results: object) -> None:
    counters = RedisCounters(url, prefix=prefix)
    on = limits(
        limit("requests", "minute", 100), limit("tokens", "minute", 10_000), limit("dollars", "day", 5_000)
    )
    import gateway.quota.redis as module

    module.TIMEOUT = 60.0  # the processes outnumber the cores here
    rng = secrets.SystemRandom()
    amounts = [Amounts(1, rng.randrange(1, 400), rng.randrange(1, 200)) for _ in range(calls)]
    ready.wait()  # type: ignore[attr-defined]
    name = secrets.token_hex(4)
    decisions = await asyncio.gather(*(counters.reserve(f"{name}-{i}", on, a) for i, a in enumerate(amounts)))
    got = [a for a, decision in zip(amounts, decisions, strict=True) if decision.admitted]
    for i, (a, decision) in enumerate(zip(amounts, decisions, strict=True)):
        if decision.admitted:
            counters.settle(f"{name}-{i}", on, a)
    await counters.aclose()
    results.put((len(got), sum(a.tokens for a in got), sum(a.nanodollars for a in got)))  # type: ignore[attr-defined]


def _process(url: str, prefix: str, calls: int, ready: object, results: object) -> None:
    asyncio.run(_hammer(url, prefix, calls, ready, results))


def test_200_parallel_calls_over_3_processes_never_overshoot(redis_server: RedisServer) -> None:
    context = multiprocessing.get_context("spawn")
    prefix = f"{{{secrets.token_hex(4)}}}:"
    ready, results = context.Barrier(3), context.Queue()
    shares = (67, 67, 66)
    processes = [
        context.Process(target=_process, args=(redis_server.url, prefix, calls, ready, results))
        for calls in shares
    ]
    for process in processes:
        process.start()
    totals = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join(300)
    requests, tokens, nanodollars = (sum(column) for column in zip(*totals, strict=True))
    assert 0 < requests <= 100
    assert 0 < tokens <= 10_000
    assert 0 < nanodollars <= 5_000
    assert tokens > 9_500 or nanodollars > 4_700 or requests == 100, "refused without need"
    with Redis.from_url(redis_server.url) as redis:
        assert int(redis.hget(prefix + "key:k:dollars:day", "used")) == nanodollars
        assert sum(map(int, redis.hgetall(prefix + "key:k:tokens:60s").values())) == tokens


async def test_counters_that_were_dropped_are_counted_together_again() -> None:
    """A caller's limits are made anew with each policy; the old ones go on for requests that began with them."""
    clock = Clock()
    counters = MemoryCounters(clock=clock.seconds)
    old, new = (limits(limit("requests", "minute", 1)) for _ in range(2))
    assert (await take(counters, "first", old)).admitted
    clock.ms += 120_000
    for i in range(5_000):
        await take(counters, f"other-{i}", limits(limit("requests", "minute", 1, f"o{i}")))
    assert (await take(counters, "old", old)).admitted
    assert not (await take(counters, "new", new)).admitted
