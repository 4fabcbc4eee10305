"""One stage for all that is recorded of a request: who is told what, and when, whatever fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing

import pytest

from gateway.errors import RateLimited, UpstreamFailed
from gateway.metering.bill import Bill
from gateway.observe.ended import Ended
from gateway.observe.metrics import Metrics
from gateway.observe.receipts import Receipts
from gateway.policy.schema import QuotaSettings
from gateway.quota.quotas import Quotas
from gateway.stages.record import Observers, record
from gateway.stores.memory import MemoryStore
from gateway.types import Call, Chunk, Chunks, Principal, UpstreamUsage, Usage
from tests.fakes import CANDIDATE, TARGET, a_call

pytestmark = pytest.mark.anyio

ONE_AT_ONCE = QuotaSettings(concurrent_requests=1, tokens_per_minute=1_000)


class Told:
    """Of the requests that have ended: their status, and why they failed."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, str | None]] = []

    def record(self, call: Call, ended: Ended) -> None:
        self.ended.append((ended.status, ended.error))

    def record_for_house(self, call: Call, bill: Bill) -> None:
        raise AssertionError("none of these is a batch's")


async def two(call: Call) -> Chunks:
    call.candidate = CANDIDATE
    yield Chunk(index=0, delta={"content": "a"})
    call.upstream_usage.append(UpstreamUsage(TARGET, Usage(7, 2)))
    yield Chunk(index=1, usage=Usage(7, 2))


async def fails(call: Call) -> Chunks:
    raise UpstreamFailed("gone")
    yield


def limited(request_id: str) -> Call:
    return a_call(request_id=request_id, principal=Principal("k", "acme", quotas=ONE_AT_ONCE))


async def test_limits_are_settled_before_the_answer_has_ended() -> None:
    """The caller may ask again at once, on another connection."""
    quotas = Quotas("memory")
    handler = record(Observers(quotas))(two)
    for number in range(3):
        chunks = handler(limited(f"req_{number}"))
        assert len([chunk async for chunk in chunks]) == 2
        held = quotas.reserve_now(limited(f"req_{number}-next"))  # nothing has run since the end
        assert held is not None
        quotas.settle(held, tokens=0, nanodollars=0)


async def test_nothing_is_rendered_until_somebody_reads_it() -> None:
    metrics, receipts, call = Metrics(), Receipts(MemoryStore()), a_call()
    assert len(
        [chunk async for chunk in record(Observers(Quotas("memory"), None, metrics, receipts))(two)(call)]
    )
    assert call.receipt.noted.keys() == set()
    kept = await receipts.find("acme", "req_test")
    assert kept is not None
    assert kept["stages"]["quota"]["used_tokens"] == kept["stages"]["meter"]["prompt_tokens"] + 2 == 9
    assert kept["stages"]["trace"]["status"] == 200
    assert call.receipt.notes.keys() == {"quota", "meter", "trace"}
    await receipts.aclose()


async def test_a_refused_request_goes_no_further_and_is_told_of() -> None:
    told, metrics, receipts, quotas = Told(), Metrics(), Receipts(MemoryStore()), Quotas("memory")
    handler = record(Observers(quotas, told, metrics, receipts))(two)
    async with aclosing(handler(limited("req_1"))) as held:
        await anext(held)
        call = limited("req_2")
        with pytest.raises(RateLimited) as refused:
            await anext(handler(call))
        assert refused.value.logged
        assert call.receipt.notes["trace"]["status"] == 429
        assert "used_tokens" not in call.receipt.notes["quota"]
        assert told.ended == [(429, "rate_limit_exceeded")]
        assert metrics.refused["", "rate_limit_exceeded"].value == 1
        assert metrics.in_flight["m", "waiting"].value == 0
    await receipts.aclose()


async def test_an_error_and_a_caller_that_leaves_end_it() -> None:
    told = Told()
    with pytest.raises(UpstreamFailed):
        await anext(record(Observers(Quotas("memory"), told))(fails)(a_call()))
    async with aclosing(record(Observers(Quotas("memory"), told))(two)(a_call())) as chunks:
        await anext(chunks)
    task = asyncio.ensure_future(anext(record(Observers(Quotas("memory"), told))(waits)(a_call())))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert told.ended == [(502, "upstream_error"), (499, "client_left"), (499, "client_left")]


async def waits(call: Call) -> Chunks:
    await asyncio.sleep(300)
    yield Chunk()


@pytest.mark.parametrize("broken", ["quotas", "metrics"])
async def test_what_breaks_at_the_end_costs_neither_the_answer_nor_the_rest(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    metrics, receipts, quotas, call = Metrics(), Receipts(MemoryStore()), Quotas("memory"), limited("req_1")
    if broken == "quotas":
        monkeypatch.setattr(quotas, "settle", None)
    else:
        monkeypatch.setattr(metrics, "seconds", {})
    with caplog.at_level(logging.ERROR):
        handler = record(Observers(quotas, None, metrics, receipts))(two)
        assert len([chunk async for chunk in handler(call)]) == 2
    assert "could not be recorded" in caplog.text
    assert call.receipt.notes["trace"]["status"] == 200
    assert metrics.requests["m", "up", "200"].value == 1
    await receipts.aclose()


class Sink:
    def __init__(self) -> None:
        self.source: object = None
        self.looking: list[Callable[[Chunk, Sequence[str]], object]] = []
        self.is_open = False

    async def caught_up(self) -> None: ...

    def pass_on(self, like: Chunk, texts: Sequence[str]) -> bool:
        raise AssertionError("nobody has anything to pass on")


def loop(call: Call) -> Chunks:
    """As the loop over candidates does."""
    chunks = two(call)
    if call.sink is not None:
        call.sink.source = chunks
    return chunks


async def test_a_stream_that_no_stage_changes_keeps_its_sink() -> None:
    call = a_call()
    call.sink = sink = Sink()
    async with aclosing(record(Observers())(lambda call: loop(call))(call)) as chunks:
        await anext(chunks)
        assert call.sink is sink
        assert len(sink.looking) == 1


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_one_that_a_stage_reads_loses_it(when: str) -> None:
    async def changed(following: Chunks | None, call: Call) -> Chunks:
        async with aclosing(following or loop(call)) as chunks:
            async for chunk in chunks:
                yield chunk

    call = a_call()
    call.sink = sink = Sink()
    handler = record(Observers())(lambda call: changed(loop(call) if when == "at once" else None, call))
    async with aclosing(handler(call)) as chunks:
        await anext(chunks)
        assert call.sink is None
        assert not sink.looking
