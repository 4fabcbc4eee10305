"""When it is told that a share of a budget has been spent: once in a period, by one of all who count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from gateway.metering.price import NANO
from gateway.quota.budget_watch import BudgetReached, BudgetWatch
from gateway.quota.counters import QuotaDecision
from gateway.quota.limits import Limit, Limits
from gateway.stores.store import StoreDown
from gateway.stores.tally import MemoryTally, RedisTally, Tally
from tests.conftest import RedisServer

pytestmark = pytest.mark.anyio

DAY = Limit("key", "one", "dollars", "day", 10 * NANO)
MONTH = Limit("tenant", "acme", "dollars", "month", 100 * NANO)
TOKENS = Limit("key", "one", "tokens", "day", 1000)
LIMITS = Limits((DAY, TOKENS, MONTH))
MORNING = datetime(2026, 11, 23, 8, tzinfo=UTC).timestamp()


@dataclass
class Bench:
    """A watch, its clock, and what it has told."""

    tally: Tally
    now: float = MORNING
    told: list[BudgetReached] = field(default_factory=list)

    def watch(self, pause: float = 0.0) -> BudgetWatch:
        return BudgetWatch((0.5, 0.8, 1.0), self.tally, self.told.append, clock=lambda: self.now, pause=pause)

    def marks(self) -> list[tuple[str, str, float | None]]:
        told = [(one.limit.owner, one.period, one.share) for one in self.told]
        self.told.clear()
        return told


async def spend(watch: BudgetWatch, dollars: float, *, used: float = 0.0, held: float = 1.0) -> None:
    """One request; ``used`` of each budget is known to have been spent or held before."""
    amounts = tuple(round((used + held) * NANO) for _ in LIMITS.each)
    watch.admitted(LIMITS, QuotaDecision(True, amounts), round(held * NANO))
    watch.settled(LIMITS, round(held * NANO), round(dollars * NANO))
    await watch.aclose()


async def test_each_mark_is_told_once_in_a_period() -> None:
    bench = Bench(MemoryTally())
    watch = bench.watch()
    seen = []
    for dollars in (4.0, 1.0, 0.5, 3.0, 2.0, 5.0):  # 4, 5, 5.5, 8.5, 10.5, 15.5
        await spend(watch, dollars)
        seen.append(bench.marks())
    day = "2026-11-23"
    assert seen == [[], [("one", day, 0.5)], [], [("one", day, 0.8)], [("one", day, 1.0)], []]
    bench.now += 86_400
    await spend(watch, 9.0)
    assert bench.marks() == [("one", "2026-11-24", 0.5), ("one", "2026-11-24", 0.8)]
    await spend(watch, 30.0)
    assert bench.marks() == [("one", "2026-11-24", 1.0), ("acme", "2026-11", 0.5)]


async def test_what_requests_in_flight_hold_is_not_spent() -> None:
    bench = Bench(MemoryTally())
    watch = bench.watch()
    for number in range(9):
        used = tuple(round((number + 1) * NANO) for _ in LIMITS.each)
        watch.admitted(LIMITS, QuotaDecision(True, used), NANO)
    watch.settled(LIMITS, NANO, round(0.01 * NANO))
    await watch.aclose()
    assert bench.marks() == []


async def test_what_was_spent_before_anybody_counted_counts() -> None:
    bench = Bench(MemoryTally())
    await spend(bench.watch(), 0.2, used=7.9)
    assert bench.marks() == [("one", "2026-11-23", 0.5), ("one", "2026-11-23", 0.8)]
    # Another that begins later finds a count.
    await spend(bench.watch(), 0.2, used=8.1)
    assert bench.marks() == []


async def test_what_another_spends_meanwhile_is_counted_once() -> None:
    """Two look at a budget one after the other, and the later one is the first to add what it has spent."""
    tally = MemoryTally()
    first, second = Bench(tally), Bench(tally)
    early, late = first.watch(pause=60.0), second.watch()
    early.admitted(LIMITS, QuotaDecision(True, (3 * NANO,) * 3), 3 * NANO)
    await asyncio.sleep(0.01)
    early.settled(LIMITS, 3 * NANO, 3 * NANO)
    await spend(late, 3.0, used=3.0, held=3.0)
    await early.aclose()
    assert [one.nanodollars // NANO for one in first.told + second.told] == [6]


async def test_a_budget_that_refuses_is_told_once() -> None:
    bench = Bench(MemoryTally())
    watch = bench.watch()
    await spend(watch, 7.0)
    bench.marks()
    for _ in range(3):
        watch.refused(DAY)
        await watch.aclose()
    (told,) = bench.told
    assert (told.limit, told.share, told.nanodollars) == (DAY, None, 7 * NANO)


@pytest.fixture
def shared(redis_server: RedisServer) -> Callable[[], RedisTally]:
    prefix = f"budgets-{id(redis_server)}-{MORNING}:"
    return lambda: RedisTally(redis_server.url, prefix=prefix)


async def test_of_several_that_count_together_one_tells(shared: Callable[[], RedisTally]) -> None:
    benches = [Bench(shared()) for _ in range(3)]
    watches = [bench.watch() for bench in benches]
    told = []
    for _ in range(4):
        for bench, watch in zip(benches, watches, strict=True):
            await spend(watch, 1.0)
            told += bench.marks()
    for bench in benches:
        await bench.tally.aclose()
    assert told == [("one", "2026-11-23", share) for share in (0.5, 0.8, 1.0)]


class Away:
    """A tally that does not answer at first, to which each ``spend`` adds twice."""

    def __init__(self, times: int) -> None:
        self.left = times
        self._own = MemoryTally()

    async def add(self, amounts: dict[str, int], ttl: float) -> dict[str, int]:
        if self.left:
            self.left -= 1
            raise StoreDown("away")
        return await self._own.add(amounts, ttl)

    async def aclose(self) -> None: ...


async def test_what_a_store_that_is_away_does_not_take_is_added_later() -> None:
    bench = Bench(Away(4))  # type: ignore[arg-type]
    watch = bench.watch()
    await spend(watch, 3.0)
    await spend(watch, 3.0)
    assert bench.marks() == []
    await spend(watch, 0.1)
    assert bench.marks() == [("one", "2026-11-23", 0.5)]
