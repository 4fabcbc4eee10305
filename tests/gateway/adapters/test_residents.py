"""Which adapters a server has: one load for all that wait, what makes room, and that nobody gets another's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.adapters.adapter import Adapter
from gateway.adapters.loading import Loading
from gateway.adapters.residents import Residents, Uses
from gateway.adapters.servers import ServerFull
from gateway.errors import BadRequest, Overloaded, Rejected
from gateway.policy.schema import Target, Timeouts
from gateway.types import Call, Candidate, Chunk
from tests.examples import examples
from tests.fakes import a_call

PATIENT = 300.0


def adapter(number: int) -> Adapter:
    return Adapter(
        f"adapter-{number:032x}",
        "acme",
        f"a{number}",
        "m",
        2,
        (),
        10,
        "0" * 64,
        "file",
        "0" * 64,
        10,
        0,
        "key",
    )


def call_to(one: Adapter) -> Call:
    call = a_call()
    call.candidate = Candidate("m", Target(backend="b", model=one.id), Timeouts())
    return call


@dataclass
class FakeServer:
    """It does everything at its own pace, by ``random``."""

    slots: int = 100
    random: Random = field(default_factory=lambda: Random(1))
    served: dict[str, str] = field(default_factory=dict)
    in_use: dict[str, int] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    broken: bool = False
    unloaded_in_use: bool = False

    async def pause(self) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def loaded(self) -> frozenset[str]:
        await self.pause()
        return frozenset(self.served)

    async def load(self, adapter: Adapter) -> None:
        await self.pause()
        if self.broken:
            raise BadRequest("It was made for another model.")
        if adapter.id not in self.served and len(self.served) >= self.slots:
            raise ServerFull("full")
        self.loads.append(adapter.id)
        self.served[adapter.id] = f"content of {adapter.id}"
        await self.pause()

    async def unload(self, id: str) -> None:
        self.unloaded_in_use = self.unloaded_in_use or bool(self.in_use.get(id))
        self.served.pop(id, None)
        self.unloads.append(id)
        await self.pause()

    async def ask(self, call: Call) -> Sequence[Chunk]:
        name = call.target.model if call.target is not None else ""
        await self.pause()
        if name not in self.served:
            raise Rejected("no such model", status=404, type=None, param=None, code="model_not_found")
        said = self.served[name]
        self.in_use[name] = self.in_use.get(name, 0) + 1
        await self.pause()
        self.in_use[name] -= 1
        return [Chunk(delta={"content": said})]

    async def aclose(self) -> None:
        """Nothing is held."""


@pytest.mark.anyio
async def test_all_that_wait_have_one_load_which_goes_on_where_they_leave() -> None:
    server = FakeServer()
    residents = Residents(server)

    async def use() -> None:
        async with residents.using(adapter(1), PATIENT):
            pass

    tasks = [asyncio.create_task(use()) for _ in range(5)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert server.loads == [adapter(1).id]
    assert not residents.holds(adapter(2).id)


@pytest.mark.anyio
async def test_what_is_worth_least_makes_room_by_uses_and_by_what_loading_took() -> None:
    now = [0.0]
    server = FakeServer(slots=2)

    class Slow(FakeServer):
        async def load(self, adapter: Adapter) -> None:
            now[0] += 10.0 if adapter.id == dear.id else 1.0
            await super().load(adapter)

    dear, cheap, other = adapter(1), adapter(2), adapter(3)
    server = Slow(slots=2)
    residents = Residents(server, slots=2, clock=lambda: now[0])

    async def use(one: Adapter, times: int) -> None:
        for _ in range(times):
            async with residents.using(one, PATIENT):
                pass

    await use(dear, 1)
    await use(cheap, 5)
    await use(other, 1)  # five uses that took a second each are less than one that took ten
    assert server.unloads == [cheap.id]
    now[0] += 3000.0
    await use(other, 1)
    await use(cheap, 1)  # ten half-lives later they are not
    assert server.unloads == [cheap.id, dear.id]


@pytest.mark.anyio
async def test_one_in_use_stays_and_who_waits_for_room_is_told_in_time() -> None:
    server = FakeServer(slots=1)
    residents = Residents(server, slots=1)
    async with residents.using(adapter(1), PATIENT):
        with pytest.raises(Overloaded) as late:
            async with residents.using(adapter(2), 0.05):
                pass
        assert late.value.code == "adapter_loading" and late.value.retry_after
        assert server.unloads == []
    async with residents.using(adapter(2), PATIENT):
        assert server.unloads == [adapter(1).id]


@pytest.mark.anyio
@pytest.mark.parametrize("workers", [1, 2])
async def test_one_that_is_always_in_use_leaves_for_who_waits(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.adapters.residents.LEAVES_AFTER", 0.0)
    machine, ended = Machine(1, 1), asyncio.Event()
    one, other, in_use = machine.workers[0], machine.workers[workers - 1], machine.server.in_use

    async def again_and_again(delay: int) -> None:
        for _ in range(delay):
            await asyncio.sleep(0.01)
        while not ended.is_set():
            async with one.using(adapter(1), PATIENT):
                in_use[adapter(1).id] = in_use.get(adapter(1).id, 0) + 1
                await asyncio.sleep(0.05)
                in_use[adapter(1).id] -= 1

    async def once() -> None:
        await asyncio.sleep(0.1)
        async with other.using(adapter(2), PATIENT):
            ended.set()

    # At any time one of the two has a request.
    await asyncio.wait_for(asyncio.gather(again_and_again(0), again_and_again(2), once()), 300)
    assert not machine.server.unloaded_in_use


@pytest.mark.anyio
async def test_loads_do_not_wait_for_one_that_was_deleted_in_use() -> None:
    ended, began = asyncio.Event(), asyncio.Event()

    class Waits(FakeServer):
        async def unload(self, id: str) -> None:
            await super().unload(id)
            began.set()
            await ended.wait()  # for its last request

    server = Waits()
    residents = Residents(server)
    async with residents.using(adapter(1), PATIENT):
        removing = asyncio.create_task(residents.remove(adapter(1).id))
        await began.wait()
        async with asyncio.timeout(300), residents.using(adapter(2), PATIENT):
            assert not removing.done()
    ended.set()
    await removing


@pytest.mark.anyio
async def test_one_that_is_deleted_while_it_is_loaded_does_not_stay() -> None:
    server = FakeServer()
    residents = Residents(server)
    with pytest.raises(Overloaded):
        async with residents.using(adapter(1), 0.0):
            pass
    await residents.remove(adapter(1).id)
    assert server.loads == server.unloads == [adapter(1).id] and not server.served


@pytest.mark.anyio
async def test_two_that_want_one_slot_have_it_one_after_the_other() -> None:
    server = FakeServer(slots=1)
    residents = Residents(server, slots=1)

    async def use(number: int) -> None:
        for _ in range(20):
            async with residents.using(adapter(number), PATIENT):
                await asyncio.sleep(0)

    await asyncio.gather(use(1), use(2), use(3))
    assert len(server.loads) <= 60


@pytest.mark.anyio
async def test_without_slots_the_server_says_when_it_is_full() -> None:
    server = FakeServer(slots=2)
    residents = Residents(server)
    for number in (1, 2, 3):
        async with residents.using(adapter(number), PATIENT):
            pass
    assert len(server.served) == 2 and server.unloads == [adapter(1).id]
    server.slots = 0
    server.served.clear()
    with pytest.raises(Overloaded) as full:
        async with residents.using(adapter(4), PATIENT):
            pass
    assert full.value.code == "adapter_no_room"


@pytest.mark.anyio
async def test_what_fails_is_told_to_all_that_wait_and_tried_again_by_the_next() -> None:
    server = FakeServer(broken=True)
    residents = Residents(server)

    async def use() -> None:
        async with residents.using(adapter(1), PATIENT):
            pass

    failed = await asyncio.gather(use(), use(), return_exceptions=True)
    assert [type(one) for one in failed] == [BadRequest, BadRequest]
    server.broken = False
    await use()


class Machine:
    """Two workers before one server, which may be started again at any moment."""

    def __init__(self, seed: int, slots: int) -> None:
        self.random = Random(seed)
        self.server = FakeServer(slots=slots, random=self.random)
        self.lock = asyncio.Lock()
        self.workers = [
            Residents(self.server, slots=slots, elsewhere=self._uses_of(1 - number), alone=self._alone)
            for number in range(2)
        ]
        self.restarts = 0

    def _alone(self) -> AbstractAsyncContextManager[None]:
        return self.lock

    def _uses_of(self, worker: int):  # type: ignore[no-untyped-def]
        async def uses(leaving: str | None) -> Uses:
            await self.server.pause()
            if leaving is not None:
                self.workers[worker].leave(leaving)
            return self.workers[worker].uses()

        return uses

    async def request(self, worker: int, number: int) -> str:
        one = adapter(number)
        ask = Loading(one, lambda backend: self.workers[worker], PATIENT).whole(self.server.ask)
        try:
            (chunk,) = await ask(call_to(one))
        except Overloaded as told:
            return str(told.code)
        assert chunk.delta == {"content": f"content of {one.id}"}
        assert len(self.server.served) <= self.server.slots
        return "answered"


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "ask", "restart", "forget", "leave"]),
        st.integers(0, 1),
        st.integers(0, 7),
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=examples(120))
@given(st.integers(0, 2**16), st.integers(1, 4), _STEPS)
def test_nobody_is_ever_answered_by_anothers_adapter(
    seed: int, slots: int, steps: list[tuple[str, int, int]]
) -> None:
    async def story() -> None:
        machine, tasks = Machine(seed, slots), []
        for what, worker, number in steps:
            match what:
                case "ask":
                    tasks.append(asyncio.create_task(machine.request(worker, number)))
                case "restart":
                    machine.server.served.clear()
                case "forget":
                    tasks.append(asyncio.create_task(machine.workers[worker].unload(adapter(number).id)))
                case "leave":
                    machine.workers[worker].leave(adapter(number).id)
            await machine.server.pause()
        ended = await asyncio.gather(*tasks)
        assert set(ended) <= {"answered", "adapter_unloaded", None}
        for worker in machine.workers:
            assert all(not in_flight for _, in_flight in worker.uses().values())

    asyncio.run(story())
