from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway import errors
from gateway.observe.metrics import Metrics
from gateway.stages.record import Observers, record
from gateway.types import Call, Chunk, Chunks, Handler, Usage
from tests.fakes import CANDIDATE, a_call

pytestmark = pytest.mark.anyio


def answers(*steps: Chunk | BaseException | float, target: bool = True) -> Handler:
    """A handler that yields chunks, raises errors and sleeps, as listed."""

    async def handle(call: Call) -> Chunks:
        if target:
            call.candidate = CANDIDATE
        for step in steps:
            if isinstance(step, Chunk):
                yield step
            elif isinstance(step, BaseException):
                raise step
            else:
                await asyncio.sleep(step)

    return handle


def word(text: str = "a", usage: Usage | None = None) -> Chunk:
    return Chunk(delta={"content": text}, usage=usage)


def figures(metrics: Metrics) -> dict[str, float]:
    """Every sample that is not 0, by its name and labels; of histograms, counts only."""
    found = {}
    for line in metrics.render().decode().splitlines():
        name, _, value = line.rpartition(" ")
        if (
            not line.startswith("#")
            and float(value)
            and not name.partition("{")[0].endswith(("_created", "_bucket", "_sum"))
        ):
            found[name.removeprefix("tollgate_")] = float(value)
    return found


async def run(chunks: AsyncIterator[Chunk]) -> None:
    async for _ in chunks:
        pass


async def test_a_success() -> None:
    metrics, call = Metrics(tenants=True), a_call()
    usage = Usage(7, 3, cached=2, reasoning=1)
    await run(record(Observers(metrics=metrics))(answers(word(), word(), word(), Chunk(usage=usage)))(call))
    assert figures(metrics) == {
        'requests_total{backend="up",model="m",status="200"}': 1,
        'tenant_requests_total{status="200",tenant="acme"}': 1,
        'request_seconds_count{model="m"}': 1,
        'time_to_first_token_seconds_count{model="m"}': 1,
        'tenant_time_to_first_token_seconds_count{tenant="acme"}': 1,
        'inter_token_seconds_count{model="m"}': 2,
    }
    told = call.receipt.notes["meter"]
    assert 0 < told.pop("first_token") < 1
    assert told == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "cached_tokens": 2,
        "reasoning_tokens": 1,
        "chunks_after_first": 2,
    }


async def test_usage_missing() -> None:
    metrics, call = Metrics(tenants=True), a_call()
    await run(record(Observers(metrics=metrics))(answers(word()))(call))
    assert "prompt_tokens" not in call.receipt.notes["meter"]


async def test_the_last_usage_counts() -> None:
    metrics, call = Metrics(), a_call()
    await run(
        record(Observers(metrics=metrics))(answers(word(usage=Usage(7, 1)), word(usage=Usage(7, 2)), word()))(
            call
        )
    )
    assert call.receipt.notes["meter"]["completion_tokens"] == 2


async def test_an_error_before_the_first_token() -> None:
    metrics, call = Metrics(tenants=True), a_call()
    with pytest.raises(errors.RateLimited):
        await run(record(Observers(metrics=metrics))(answers(errors.RateLimited("x"), target=False))(call))
    assert figures(metrics) == {
        'requests_total{backend="",model="m",status="429"}': 1,
        'tenant_requests_total{status="429",tenant="acme"}': 1,
        'request_seconds_count{model="m"}': 1,
        'refused_requests_total{reason="rate_limit_exceeded",tenant="acme"}': 1,
    }
    assert call.receipt.notes["meter"] == {"error": "rate_limit_exceeded", "chunks_after_first": 0}


async def test_what_a_backend_refused_was_not_refused_here() -> None:
    metrics, call = Metrics(tenants=True), a_call()
    call.receipt.note("fallback", attempts=[{"backend": "up"}])
    with pytest.raises(errors.RateLimited):
        await run(record(Observers(metrics=metrics))(answers(errors.RateLimited("x"), target=False))(call))
    assert not any("refused" in name for name in figures(metrics))


async def test_an_error_in_the_middle_keeps_what_was_counted() -> None:
    metrics, call = Metrics(tenants=True), a_call()
    steps = answers(word(), word(usage=Usage(7, 2)), errors.UpstreamFailed("x", code="upstream_cut"))
    with pytest.raises(errors.UpstreamFailed):
        await run(record(Observers(metrics=metrics))(steps)(call))
    assert figures(metrics) == {
        'requests_total{backend="up",model="m",status="502"}': 1,
        'tenant_requests_total{status="502",tenant="acme"}': 1,
        'request_seconds_count{model="m"}': 1,
        'time_to_first_token_seconds_count{model="m"}': 1,
        'tenant_time_to_first_token_seconds_count{tenant="acme"}': 1,
        'inter_token_seconds_count{model="m"}': 1,
    }
    assert call.receipt.notes["meter"]["error"] == "upstream_cut"


async def test_a_bug_of_ours() -> None:
    metrics = Metrics(tenants=True)
    with pytest.raises(ValueError, match="x"):
        await run(record(Observers(metrics=metrics))(answers(ValueError("x")))(a_call()))
    assert figures(metrics)['requests_total{backend="up",model="m",status="500"}'] == 1


async def test_a_client_that_leaves_in_the_middle() -> None:
    metrics = Metrics(tenants=True)
    chunks = record(Observers(metrics=metrics))(answers(word(), word()))(a_call())
    await anext(chunks)
    assert figures(metrics)['requests_in_flight{model="m",state="running"}'] == 1
    await chunks.aclose()
    assert figures(metrics) == {
        'requests_total{backend="up",model="m",status="499"}': 1,
        'tenant_requests_total{status="499",tenant="acme"}': 1,
        'request_seconds_count{model="m"}': 1,
        'time_to_first_token_seconds_count{model="m"}': 1,
        'tenant_time_to_first_token_seconds_count{tenant="acme"}': 1,
    }


async def test_a_client_that_leaves_before_the_first_token() -> None:
    metrics = Metrics(tenants=True)
    task = asyncio.create_task(run(record(Observers(metrics=metrics))(answers(60.0))(a_call())))
    await asyncio.sleep(0)
    assert figures(metrics) == {'requests_in_flight{model="m",state="waiting"}': 1}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert figures(metrics) == {
        'requests_total{backend="up",model="m",status="499"}': 1,
        'tenant_requests_total{status="499",tenant="acme"}': 1,
        'request_seconds_count{model="m"}': 1,
    }


async def test_times_are_those_of_the_clock() -> None:
    metrics, call = Metrics(tenants=True), a_call()
    await run(record(Observers(metrics=metrics))(answers(0.06, word(), 0.03, word()))(call))
    sums = {
        line.split("{")[0]: float(line.rpartition(" ")[2])
        for line in metrics.render().decode().splitlines()
        if "_sum{" in line
    }
    assert 0.06 <= sums["tollgate_time_to_first_token_seconds_sum"] < 0.5
    assert 0.03 <= sums["tollgate_inter_token_seconds_sum"] < 0.5
    assert 0.09 <= sums["tollgate_request_seconds_sum"] < 1
    assert call.receipt.notes["meter"]["first_token"] >= 0.06


async def test_chunks_pass_untouched() -> None:
    chunks = [word("a"), Chunk(usage=Usage(1, 1)), word("b")]
    assert [
        chunk async for chunk in record(Observers(metrics=Metrics(tenants=True)))(answers(*chunks))(a_call())
    ] == chunks
