"""The decisions, on processes that a script plays: what they take, when they load, fail and die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.errors import InternalError, ModelLoading, ModelNeverFits, ModelNotLoaded, StartupError
from engine.fleet.exchange import MemberGone
from engine.fleet.keeper import Keeper
from engine.fleet.model import State, Ticket
from engine.fleet.pace import Pace
from engine.fleet.roster import ModelEntry, Roster, Terms

PACE = Pace(turn=0.0, shortest_turn=0.05, linger=0.01, look=0.02, backoff=0.01, longest_backoff=0.02)
MIB = 2**20


class Played:
    """In place of ``engine.fleet.member.Member``."""

    def __init__(self, world: World, entry: ModelEntry) -> None:
        self.world, self.name = world, entry.name
        self.socket = Path("/nowhere")
        self.asleep = False
        self.ended = asyncio.Event()
        self.exit_status: int | None = None
        self._on_death: Callable[[Any], None] = lambda member: None

    async def ready(self) -> None:
        await asyncio.sleep(0.001)
        if self.world.failing.get(self.name, 0) > 0:
            self.world.failing[self.name] -= 1
            raise StartupError("no weights")
        self.world.running.append(self)
        self.world.look()

    def watch(self, on_death: Callable[[Any], None]) -> None:
        self._on_death = on_death

    def die(self) -> None:
        self.world.running.remove(self)
        self.ended.set()
        self._on_death(self)

    def end(self) -> None:
        asyncio.get_running_loop().call_later(0.005, self.die)

    async def taken(self) -> int:
        if self.asleep and self.world.dying_asleep:
            self.world.dying_asleep = False
            self.die()
        return (20 if self.asleep else 100) * MIB

    async def state(self) -> dict[str, Any]:
        weights = 80 * MIB
        return {"device": "cpu", "max_model_len": 64, "memory_bytes": {"weights": weights, "kv_cache": 0}}

    async def prove(self) -> None:
        if self.world.dying_at_work > 0:
            self.world.dying_at_work -= 1
            self.die()
            raise MemberGone("it died", certain=True)

    async def sleep(self, level: int) -> None:
        self.asleep = True

    async def wake(self) -> None:
        self.asleep = False
        self.world.look()

    async def stop(self) -> None:
        await asyncio.sleep(0)
        if self in self.world.running:
            self.world.running.remove(self)

    kill = stop


class World:
    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.failing: dict[str, int] = {}
        self.broken = 0
        """Starts to come that end in an error that nobody foresees."""
        self.running: list[Played] = []
        self.dying_asleep = False
        """The next one that is put to sleep dies of it."""
        self.dying_at_work = 0
        """How often a process dies of the first thing that it computes."""
        self.loads: list[str] = []
        self.most = 0

    async def start(self, entry: ModelEntry, number: int) -> Any:
        if self.broken:
            self.broken -= 1
            raise BlockingIOError("no process left")
        self.loads.append(entry.name)
        return Played(self, entry)

    def look(self) -> None:
        self.most = max(self.most, sum(20 if one.asleep else 100 for one in self.running))

    async def refuse(self, level: int) -> None:
        raise RuntimeError("unforeseen")

    def of(self, name: str) -> Played:
        (found,) = (one for one in self.running if one.name == name)
        return found


@asynccontextmanager
async def keeping(
    budget: int, *, max_load_wait: float = 60.0, clock: Callable[[], float] = time.monotonic, **terms: Terms
) -> AsyncIterator[tuple[Keeper, World]]:
    """``budget`` in MiB, beside the process's own memory; each loaded model takes 100, asleep 20."""
    world = World(budget)
    entries = tuple(ModelEntry(name, name, one) for name, one in terms.items())
    needs = dict.fromkeys(terms, 100 * MIB)
    roster = Roster(entries, max_load_wait=max_load_wait)
    keeper = Keeper(roster, budget * MIB, needs, world.start, pace=PACE, clock=clock)
    keeper.budget.measure = _nothing  # type: ignore[method-assign]
    keeper.begin()
    try:
        yield keeper, world
    finally:
        await keeper.close()


async def _nothing() -> None:
    """The test's own memory is none of the budget's."""


async def granted(ticket: Ticket) -> Ticket:
    async with asyncio.timeout(60):
        while ticket.member is None and ticket.error is None:
            await ticket.change(1.0)
    if ticket.error is not None:
        raise ticket.error
    return ticket


async def ask(keeper: Keeper, name: str, seconds: float = 0.0) -> Ticket:
    ticket = await granted(keeper.join(keeper.models[name], None))
    await asyncio.sleep(seconds)
    keeper.leave(ticket)
    return ticket


async def until(condition: Callable[[], bool]) -> None:
    """Looks in each turn of the loop: what is waited for may last a few of them."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- of a test
            await asyncio.sleep(0)


def test_a_model_is_loaded_when_it_is_asked_and_gives_way_to_the_next() -> None:
    async def run() -> None:
        async with keeping(150, a=Terms(sleep_level=0), b=Terms(sleep_level=0)) as (keeper, world):
            assert (await ask(keeper, "a")).cold
            assert not (await ask(keeper, "a")).cold
            await ask(keeper, "b")
            await ask(keeper, "a")
            assert world.loads == ["a", "b", "a"]
            assert (world.most, keeper.swaps) == (100, 2)

    asyncio.run(run())


def test_where_sleep_is_enough_nobody_is_unloaded_and_the_next_request_wakes() -> None:
    async def run() -> None:
        async with keeping(120, a=Terms(), b=Terms()) as (keeper, world):
            for name in "abab":
                await ask(keeper, name)
            assert world.loads == ["a", "b"]
            assert keeper.models["a"].state is State.SLEEPING

    asyncio.run(run())


def test_under_a_rate_of_requests_turns_are_kept_and_everybody_is_served() -> None:
    async def client(keeper: Keeper, name: str, served: list[str], count: int) -> None:
        for _ in range(count):
            await ask(keeper, name, 0.002)
            served.append(name)

    async def run() -> None:
        async with keeping(110, a=Terms(), b=Terms(), c=Terms()) as (keeper, world):
            served: list[str] = []
            clients = [client(keeper, name, served, 20) for name in "abc" for _ in range(2)]
            async with asyncio.timeout(60):
                await asyncio.gather(*clients)
            assert len(served) == 120
            assert world.most <= 110
            # Each swap is followed by a turn: far fewer than one for each request.
            assert keeper.swaps < 60

    asyncio.run(run())


def test_who_is_pinned_stays_and_who_never_fits_is_told() -> None:
    async def run() -> None:
        async with keeping(150, a=Terms(pinned=True), b=Terms()) as (keeper, world):
            await until(lambda: keeper.models["a"].state is State.LOADED)
            with pytest.raises(ModelNeverFits, match="beside a, which never give way"):
                keeper.join(keeper.models["b"], None)
            assert world.loads == ["a"]

    asyncio.run(run())


def test_a_waiting_request_lives_through_one_failed_load_and_not_two() -> None:
    async def run() -> None:
        async with keeping(150, a=Terms()) as (keeper, world):
            world.failing["a"] = 1
            await ask(keeper, "a")
            assert world.loads == ["a", "a"]
            world.of("a").die()
            assert keeper.models["a"].deaths == 1
            world.failing["a"] = 2
            with pytest.raises(ModelNotLoaded, match="no weights"):
                await ask(keeper, "a")
            await ask(keeper, "a")

    asyncio.run(run())


def test_after_a_death_a_request_waits_once_more_and_a_pinned_model_comes_back() -> None:
    async def run() -> None:
        async with keeping(150, a=Terms(pinned=True)) as (keeper, world):
            ticket = await granted(keeper.join(keeper.models["a"], None))
            first = ticket.generation
            world.of("a").die()
            assert keeper.join_again(ticket)
            await granted(ticket)
            assert ticket.generation == first + 1
            world.of("a").die()
            assert not keeper.join_again(ticket)
            assert keeper.models["a"].in_flight == 0
            await until(lambda: keeper.models["a"].state is State.LOADED)

    asyncio.run(run())


def test_a_process_that_is_lost_ends_even_if_who_noticed_leaves() -> None:
    async def run() -> None:
        async with keeping(150, a=Terms(pinned=True)) as (keeper, world):
            model = keeper.models["a"]
            ticket = await granted(keeper.join(model, None))
            losing = asyncio.create_task(keeper.lost(ticket, certain=True))
            other = await granted(keeper.join(model, None))
            await until(lambda: model.state is State.LEAVING)
            losing.cancel()
            keeper.leave(ticket)
            # Nothing is loaded beside the one that dies; those that it served wait for its end.
            await keeper.lost(other, certain=False)
            assert (model.deaths, world.loads, model.state) == (1, ["a"], State.UNLOADED)
            assert keeper.join_again(other)
            await granted(other)
            assert (world.loads, world.most) == (["a", "a"], 100)

    asyncio.run(run())


def test_a_model_that_dies_while_it_is_put_to_sleep_is_unloaded_and_comes_back() -> None:
    async def run() -> None:
        async with keeping(150, a=Terms()) as (keeper, world):
            model = keeper.models["a"]
            await keeper.load(model)
            world.dying_asleep = True
            await keeper.sleep(model)
            assert (model.member, model.held, model.deaths) == (None, 0, 1)
            assert model.state is State.UNLOADED
            await ask(keeper, "a")

    asyncio.run(run())


def test_the_deadline_of_a_request_holds_after_a_death() -> None:
    async def run() -> None:
        now = [time.monotonic()]
        async with keeping(150, a=Terms(), clock=lambda: now[0]) as (keeper, world):
            await ask(keeper, "a")
            ticket = await granted(keeper.join(keeper.models["a"], now[0] + 100))
            world.of("a").die()
            now[0] += 101
            assert keeper.join_again(ticket)
            with pytest.raises(ModelLoading):
                await granted(ticket)

    asyncio.run(run())


def test_a_model_that_nobody_asks_sleeps_and_then_ends_unless_it_is_kept() -> None:
    async def run() -> None:
        terms = {"sleep_after": 0.02, "unload_after": 0.1}
        async with keeping(500, a=Terms(**terms), b=Terms(min=1, **terms)) as (keeper, world):
            await ask(keeper, "a")
            await until(lambda: keeper.models["b"].state is State.LOADED)
            await until(lambda: keeper.models["a"].state is State.SLEEPING)
            await until(lambda: keeper.models["a"].state is State.UNLOADED)
            assert [one.name for one in world.running] == ["b"]
            assert keeper.models["b"].state is State.LOADED

    asyncio.run(run())


def test_who_would_wait_too_long_is_told_how_long() -> None:
    async def run() -> None:
        async with keeping(150, a=Terms(), max_load_wait=0.5) as (keeper, _):
            with pytest.raises(ModelLoading) as refused:
                keeper.join(keeper.models["a"], None)
            assert refused.value.retry_after > 3
            assert not keeper.models["a"].waiting

    asyncio.run(run())


def test_orders_load_put_to_sleep_and_unload() -> None:
    async def run() -> None:
        async with keeping(150, a=Terms(min=1)) as (keeper, _):
            model = keeper.models["a"]
            await keeper.load(model)
            await keeper.sleep(model)
            assert model.state is State.SLEEPING
            await keeper.unload(model)
            assert model.state is State.UNLOADED
            await asyncio.sleep(0.05)
            assert model.state is State.UNLOADED  # by order, until somebody asks
            await ask(keeper, "a")
            assert model.state is State.LOADED

    asyncio.run(run())


def test_an_order_to_load_succeeds_only_if_the_model_computes() -> None:
    async def run() -> None:
        async with keeping(150, a=Terms()) as (keeper, world):
            model = keeper.models["a"]
            world.dying_at_work = 1
            await keeper.load(model)
            assert (world.loads, model.state) == (["a", "a"], State.LOADED)
            await keeper.unload(model)
            world.dying_at_work = 2
            with pytest.raises(ModelNotLoaded, match="died as soon as it was loaded"):
                await keeper.load(model)
            assert (model.deaths, model.in_flight, model.waiting) == (3, 0, [])

    asyncio.run(run())


@pytest.mark.parametrize(("order", "then"), [("unload", ["a", "a"]), ("sleep", ["a"])])
def test_orders_go_before_requests_that_never_cease(order: str, then: list[str]) -> None:
    async def client(keeper: Keeper, served: list[int]) -> None:
        while True:
            await ask(keeper, "a", 0.005)
            served.append(1)

    async def run() -> None:
        async with keeping(150, a=Terms()) as (keeper, world):
            model, served = keeper.models["a"], list[int]()
            # They overlap: one at least is always there.
            clients = [asyncio.create_task(client(keeper, served)) for _ in range(5)]
            await until(lambda: len(served) > 5)
            async with asyncio.timeout(60):
                await getattr(keeper, order)(model)
            assert model.loads == 1
            count = len(served)
            await until(lambda: len(served) > count + 5)
            assert (world.loads, model.loads) == (then, 2)
            for one in clients:
                one.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    asyncio.run(run())


def test_who_gives_way_is_served_while_the_first_in_the_queue_does_not_load() -> None:
    async def run() -> None:
        async with keeping(150, a=Terms(), b=Terms()) as (keeper, world):
            held = await granted(keeper.join(keeper.models["a"], None))
            first = keeper.join(keeper.models["b"], None)
            await until(lambda: keeper.models["a"].yielding)
            keeper.models["b"].retry_at = time.monotonic() + 60
            assert (await ask(keeper, "a")).error is None
            keeper.leave(held)
            keeper.leave(first)
            assert world.loads == ["a"]

    asyncio.run(run())


def test_a_mistake_in_a_decision_is_told_to_who_waits_and_the_next_request_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken() -> None:
        raise RuntimeError("no such file")

    async def run() -> None:
        async with keeping(150, a=Terms()) as (keeper, _):
            model, measure = keeper.models["a"], keeper.budget.measure
            keeper.budget.measure = broken  # type: ignore[method-assign]
            with pytest.raises(InternalError):
                await ask(keeper, "a")
            assert not keeper.alive
            assert "no such file" in caplog.text
            keeper.budget.measure = measure  # type: ignore[method-assign]
            await until(lambda: keeper.alive)
            await ask(keeper, "a")
            keeper.budget.measure = broken  # type: ignore[method-assign]
            held = await granted(keeper.join(model, None))
            with pytest.raises(InternalError):
                await keeper.unload(model)
            keeper.leave(held)

    asyncio.run(run())


def test_a_change_that_breaks_is_a_failed_load_and_leaves_no_model_on_its_way() -> None:
    async def run() -> None:
        async with keeping(150, a=Terms()) as (keeper, world):
            world.broken = 2
            with pytest.raises(ModelNotLoaded, match="BlockingIOError: no process left"):
                await ask(keeper, "a")
            await ask(keeper, "a")
            world.of("a").sleep = world.refuse  # type: ignore[method-assign]
            await keeper.sleep(keeper.models["a"])
            assert keeper.models["a"].state is State.UNLOADED
            await ask(keeper, "a")

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(3))
def test_whatever_fails_dies_and_leaves_the_budget_holds_and_nobody_waits_for_ever(seed: int) -> None:
    random = Random(seed)

    async def client(keeper: Keeper, name: str) -> None:
        for _ in range(15):
            ticket = keeper.join(keeper.models[name], None)
            try:
                if random.random() < 0.2:
                    await ticket.change(0.001)
                    continue
                await granted(ticket)
                await asyncio.sleep(random.random() * 0.004)
            except ModelNotLoaded:
                pass
            finally:
                keeper.leave(ticket)

    async def trouble(world: World) -> None:
        while True:
            await asyncio.sleep(0.01)
            if random.random() < 0.3:
                world.failing[random.choice("abcd")] = random.randrange(3)
            if world.running and random.random() < 0.4:
                random.choice(world.running).die()

    async def run() -> None:
        terms = {name: Terms(sleep_level=random.randrange(3)) for name in "abcd"}
        async with keeping(230, **terms) as (keeper, world):
            troubling = asyncio.create_task(trouble(world))
            async with asyncio.timeout(60):
                await asyncio.gather(*(client(keeper, name) for name in "abcd" for _ in range(3)))
            troubling.cancel()
            assert world.most <= 230
            assert all(model.in_flight == 0 and not model.waiting for model in keeper.models.values())

    asyncio.run(run())
