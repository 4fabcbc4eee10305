"""One call upstream and several readers, who come, fall behind and leave at any time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import errors
from gateway.caching.answers import Recording
from gateway.caching.single_flight import AHEAD, BEHIND, Flight, Flights, LeaderFailed, Reader
from gateway.types import Call, Chunk, Chunks, UpstreamUsage, Usage
from tests.examples import examples
from tests.fakes import CANDIDATE, TARGET, a_call

pytestmark = pytest.mark.anyio

SPENT = UpstreamUsage(TARGET, Usage(5, 3))


class Upstream:
    """Says "0", "1" … as it is let, and notes how its one call ended."""

    def __init__(self, pieces: int = 4) -> None:
        self.pieces = pieces
        self.steps = asyncio.Semaphore(0)
        self.calls = 0
        self.said = 0
        self.closed = False
        self.error: BaseException | None = None

    async def __call__(self, call: Call, recording: Recording) -> Chunks:
        self.calls += 1
        call.candidate = CANDIDATE
        call.reply_headers["x-tollgate-model"] = "m"
        try:
            for number in range(self.pieces):
                await self.steps.acquire()
                if self.error is not None:
                    raise self.error
                end = number == self.pieces - 1
                chunk = Chunk(
                    delta={"content": str(number)},
                    finish_reason="stop" if end else None,
                    usage=Usage(5, 3) if end else None,
                    envelope={"id": "upstream", "created": 1},
                )
                recording.add(chunk)
                self.said += 1
                yield chunk
        finally:
            self.closed = True
            call.upstream_usage.append(SPENT)
            call.receipt.note("route", model="m")

    def go(self, steps: int = 100) -> None:
        for _ in range(steps):
            self.steps.release()


class Client:
    """Reads a flight in a task of its own."""

    def __init__(self, flight: Flight, name: str, leave_after: int | None = None) -> None:
        self.call = a_call(request_id=name)
        self.chunks: list[Chunk] = []
        self._leave_after = leave_after
        self.reader: Reader = flight.join(self.call)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with aclosing(self.reader.read()) as chunks:
            if self._leave_after == 0:
                # A generator that was never begun has no end either.
                await anext(chunks, None)
                return
            async for chunk in chunks:
                self.chunks.append(chunk)
                if len(self.chunks) == self._leave_after:
                    return

    @property
    def text(self) -> str:
        return "".join([chunk.delta["content"] for chunk in self.chunks if chunk.delta])


async def turn() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def started(upstream: Upstream, flights: Flights | None = None, *, max_entry: int = 1000) -> Flight:
    return (flights or Flights()).start("k", a_call(request_id="leader"), upstream, max_entry=max_entry)


async def test_all_read_the_same_and_one_pays() -> None:
    upstream, flights = Upstream(), Flights()
    flight = started(upstream, flights)
    first = Client(flight, "a")
    upstream.go(2)
    await turn()
    assert flights.find("k") is flight
    second = Client(flight, "b")
    upstream.go()
    await asyncio.gather(first.task, second.task)
    assert first.text == second.text == "0123"
    assert upstream.calls == 1
    assert (first.call.upstream_usage, second.call.upstream_usage) == ([SPENT], [])
    assert (first.call.cached, second.call.cached) == (None, "exact")
    assert first.call.receipt.notes["route"] == {"model": "m"}
    assert first.call.candidate is second.call.candidate is CANDIDATE
    assert second.call.reply_headers == {"x-tollgate-model": "m"}
    assert flights.find("k") is None and not flights.in_flight


async def test_each_has_chunks_and_an_id_of_its_own() -> None:
    upstream = Upstream()
    flight = started(upstream)
    clients = [Client(flight, name) for name in "abc"]
    upstream.go()
    await asyncio.gather(*(client.task for client in clients))
    assert len({id(chunk) for client in clients for chunk in client.chunks}) == 12
    assert [chunk.envelope.get("id") for chunk in clients[0].chunks] == ["upstream"] * 4
    assert all(not chunk.envelope for client in clients[1:] for chunk in client.chunks)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_the_leader_leaves_and_pays_at_the_end(after: int) -> None:
    """Its limits hold what the call may cost, those of the others do not: they must not be free before."""
    upstream = Upstream()
    flight = started(upstream)
    leader = Client(flight, "a")
    others = [Client(flight, "b"), Client(flight, "c")]
    upstream.go(after)
    await turn()
    leader.task.cancel()
    await turn()
    assert not upstream.closed and not leader.task.done()
    upstream.go()
    await asyncio.wait([client.task for client in (leader, *others)])
    assert [other.text for other in others] == ["0123", "0123"]
    assert [client.call.upstream_usage for client in (leader, *others)] == [[SPENT], [], []]
    assert [client.call.cached for client in (leader, *others)] == [None, "exact", "exact"]


async def test_a_leader_who_is_made_to_go_at_once_leaves_the_bill_to_the_next() -> None:
    upstream = Upstream()
    flight = started(upstream)
    leader, other = Client(flight, "a"), Client(flight, "b")
    await turn()
    leader.task.cancel()
    await turn()
    leader.task.cancel()
    await asyncio.wait([leader.task])
    assert not upstream.closed
    upstream.go()
    await other.task
    assert (leader.call.upstream_usage, other.call.upstream_usage) == ([], [SPENT])
    assert (leader.call.cached, other.call.cached) == ("exact", None)
    assert leader.call.receipt.notes["cache"] == {"paid_by": "b"}


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_the_work_stops_when_all_have_left(after: int) -> None:
    upstream, flights = Upstream(), Flights()
    flight = started(upstream, flights)
    clients = [Client(flight, "a"), Client(flight, "b")]
    upstream.go(after)
    await turn()
    for client in clients:
        client.task.cancel()
    await asyncio.wait([client.task for client in clients])
    assert upstream.closed
    assert upstream.said == after
    assert [client.call.upstream_usage for client in clients] == [[SPENT], []]
    assert flights.find("k") is None


async def test_a_reader_that_stops_reading_is_one_that_left() -> None:
    upstream = Upstream()
    client = Client(started(upstream), "a", leave_after=1)
    upstream.go(1)
    await client.task
    assert upstream.closed and client.call.upstream_usage == [SPENT]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(1, 3)), min_size=1, max_size=4),
    st.integers(2, 6),
)
@settings(max_examples=examples(60))
def test_whoever_comes_and_goes_it_is_paid_once(plans: list[tuple[int, int | None]], pieces: int) -> None:
    """Clients as (when they come, after how many chunks they leave)."""

    async def run() -> None:
        upstream, flights = Upstream(pieces), Flights()
        flight = started(upstream, flights)
        clients: list[Client] = []
        for step in range(pieces + 1):
            for number, (comes, leaves) in enumerate(plans):
                # Somebody has to be there from the beginning.
                if (comes if number else 0) == step and flight.may_be_joined:
                    clients.append(Client(flight, f"c{number}", leaves))
            upstream.go(1)
            await turn()
        await asyncio.gather(*(client.task for client in clients))
        whole = "".join(map(str, range(pieces)))
        for client in clients:
            assert whole.startswith(client.text)
            assert client._leave_after is not None or client.text == whole
        assert [spending for client in clients for spending in client.call.upstream_usage] == [SPENT]
        assert [
            client for client in clients if client.call.cached is None and not client.call.upstream_usage
        ] == []
        assert upstream.closed and upstream.calls == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    "error",
    [
        errors.Overloaded("full", retry_after=1.0),
        errors.RateLimited("slow down"),
        errors.DeadlineExceeded("late"),
        errors.ShuttingDown("bye"),
        errors.Forbidden("no"),
    ],
)
async def test_an_error_of_the_leaders_own(error: errors.GatewayError) -> None:
    upstream = Upstream()
    flight = started(upstream)
    leader, other = Client(flight, "a"), Client(flight, "b")
    upstream.error = error
    upstream.go()
    await asyncio.wait([leader.task, other.task])
    assert type(leader.task.exception()) is type(error)
    assert isinstance(other.task.exception(), LeaderFailed)
    assert (leader.call.upstream_usage, other.call.upstream_usage) == ([SPENT], [])


async def test_an_error_of_the_requests() -> None:
    upstream = Upstream()
    flight = started(upstream)
    clients = [Client(flight, "a"), Client(flight, "b")]
    upstream.error = errors.Rejected("bad", status=422, type=None, param="seed", code="odd")
    upstream.error.headers["x-own"] = "1"
    upstream.go()
    await asyncio.wait([client.task for client in clients])
    found = [client.task.exception() for client in clients]
    for one in found:
        assert isinstance(one, errors.Rejected)
        assert (one.status, one.param, one.code, one.message) == (422, "seed", "odd", "bad")
    first, second = found
    assert isinstance(first, errors.Rejected) and isinstance(second, errors.Rejected)
    first.headers["x-ratelimit-remaining-requests"] = "7"
    assert second.headers == {"x-own": "1"}


@pytest.mark.parametrize("error", [errors.Overloaded("full"), errors.UpstreamFailed("cut")])
async def test_an_error_in_the_middle_is_everybodys(error: errors.GatewayError) -> None:
    upstream = Upstream()
    flight = started(upstream)
    clients = [Client(flight, "a"), Client(flight, "b")]
    upstream.go(2)
    await turn()
    upstream.error = error
    upstream.go()
    await asyncio.wait([client.task for client in clients])
    assert [type(client.task.exception()) for client in clients] == [type(error)] * 2
    assert [client.text for client in clients] == ["01", "01"]


async def test_a_bug_is_everybodys() -> None:
    upstream = Upstream()
    flight = started(upstream)
    clients = [Client(flight, "a"), Client(flight, "b")]
    upstream.error = ZeroDivisionError()
    upstream.go()
    await asyncio.wait([client.task for client in clients])
    assert [type(client.task.exception()) for client in clients] == [ZeroDivisionError] * 2


async def test_nobody_joins_what_is_too_long_or_was_cut() -> None:
    upstream, flights = Upstream(), Flights()
    flight = started(upstream, flights, max_entry=2)
    client = Client(flight, "a")
    upstream.go(1)
    await turn()
    flight.recording.size = 3
    assert flights.find("k") is None
    flight.recording.size = 1
    assert flights.find("k") is flight
    flight.recording.cut = True
    assert flights.find("k") is None
    upstream.go()
    await client.task


async def test_a_client_that_does_not_read_holds_up_the_work() -> None:
    upstream = Upstream(4 * AHEAD)
    flight = started(upstream, max_entry=10**6)
    call = a_call()
    upstream.go(4 * AHEAD)
    async with aclosing(flight.join(call).read()) as chunks:
        await anext(chunks)
        await turn()
        assert upstream.said <= AHEAD + 1
        assert len([chunk async for chunk in chunks]) == 4 * AHEAD - 1


async def test_one_that_does_not_read_does_not_hold_up_the_others() -> None:
    upstream = Upstream(4 * AHEAD)
    flight = started(upstream, max_entry=10**6)
    slow = flight.join(a_call()).read()
    upstream.go(4 * AHEAD)
    await anext(slow)
    quick = Client(flight, "b")
    await quick.task
    assert len([chunk async for chunk in slow]) == 4 * AHEAD - 1


async def test_what_waits_for_one_that_does_not_read_is_joined() -> None:
    pieces = 3 * BEHIND
    upstream = Upstream(pieces)
    flight = started(upstream, max_entry=10**6)
    lazy = flight.join(a_call())
    slow = lazy.read()
    upstream.go(pieces)
    await anext(slow)
    quick = Client(flight, "b")
    await asyncio.wait_for(quick.task, 300)
    assert len(lazy.chunks) <= BEHIND
    rest = [chunk async for chunk in slow]
    said = "".join(chunk.delta["content"] for chunk in rest if chunk.delta)
    assert said == "".join(map(str, range(1, pieces)))
    assert {chunk.envelope.get("id") for chunk in rest if chunk.delta} == {"upstream"}  # an answer has one id
    assert rest[-1].usage == Usage(5, 3) and [c.finish_reason for c in rest if c.finish_reason] == ["stop"]


async def test_a_cut_tells_each_reader_of_its_own_request() -> None:
    begin = asyncio.Event()

    async def source(call: Call, recording: Recording) -> Chunks:
        await begin.wait()
        yield Chunk(delta={}, finish_reason="content_filter", revocation={"request_id": call.request_id})

    flight = Flights().start("k", a_call(request_id="a"), source, max_entry=100)
    clients = [Client(flight, name) for name in "ab"]
    begin.set()
    for client, name in zip(clients, "ab", strict=True):
        await client.task
        assert client.chunks[-1].revocation == {"request_id": name}


async def test_comments_go_to_who_is_there() -> None:
    begin = asyncio.Event()

    async def source(call: Call, recording: Recording) -> Chunks:
        yield Chunk(comment="place 3")
        await begin.wait()
        chunk = Chunk(delta={"content": "a"}, finish_reason="stop")
        recording.add(chunk)
        yield chunk

    flight = Flights().start("k", a_call(), source, max_entry=1000)
    first = Client(flight, "a")
    await turn()
    second = Client(flight, "b")
    begin.set()
    await asyncio.gather(first.task, second.task)
    assert [chunk.comment for chunk in first.chunks] == ["place 3", None]
    assert [chunk.comment for chunk in second.chunks] == [None]


async def test_the_end_of_the_gateway() -> None:
    upstream, flights = Upstream(), Flights()
    client = Client(started(upstream, flights), "a")
    await turn()
    await flights.aclose()
    await asyncio.wait([client.task])
    assert upstream.closed
    assert isinstance(client.task.exception(), errors.ShuttingDown)


async def test_an_answer_cut_by_one_keys_budget_is_no_answer_for_another_key() -> None:
    upstream = Upstream()
    flight = started(upstream)
    flight.call.allowance = cast(Any, object())
    flight.call.reply_headers["x-tollgate-max-tokens"] = "16"
    first, own, other = Client(flight, "a"), Client(flight, "b"), Client(flight, "c")
    other.call.principal = replace(other.call.principal, key_id="other")
    upstream.go()
    await asyncio.gather(first.task, own.task)
    assert first.text == own.text == "0123"
    with pytest.raises(LeaderFailed):
        await other.task
