"""Guards that only flag take no part in what a caller gets, or when: they are heard of afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from gateway import errors
from gateway.guards.guards import Guards
from gateway.guards.scanners.factory import build_scanner
from gateway.guards.scans.background import BackgroundScans
from gateway.observe.metrics import Metrics
from gateway.policy.schema import LengthGuard
from gateway.sidecar.client import NoSidecar
from gateway.stages.guard_input import guard_input
from gateway.stages.guard_output import guard_output
from gateway.types import Call, Chunk, Chunks, Handler, Receipt
from tests.fakes import a_call, policy
from tests.scanners import KeywordScanner, SlowScanner, guards_of, unavailable

pytestmark = pytest.mark.anyio

CAT = {"cat": "animal"}
MODES = ["hold", "windowed", "optimistic"]
BOTH = [False, True]


class Desk:
    """Both stages around a model, and the receipts that were written again."""

    def __init__(self, guards: Guards, **limits: Any) -> None:
        self.metrics = Metrics()
        self.kept: list[tuple[str, Receipt]] = []
        self.flags = BackgroundScans(
            self.metrics, lambda tenant, receipt: self.kept.append((tenant, receipt)), **limits
        )
        self.guards = guards

    def around(self, model: Handler) -> Handler:
        output = guard_output(self.guards, self.flags, self.metrics)(model)
        return guard_input(self.guards, self.flags, self.metrics)(output)


def told(call: Call, direction: str) -> dict[str, Any]:
    guards: dict[str, Any] = call.receipt.notes[f"guard_{direction}"]["guards"]
    return guards


def a_cat(*, stream: bool, **config: Any) -> Call:
    return a_call(messages=({"role": "user", "content": "a cat"},), stream=stream, **config)


def flagging(scanner: Any, **config: Any) -> Guards:
    return guards_of(it=(scanner, {"on": ["input", "output"], "action": "flag", **config}))


@pytest.fixture
async def slow() -> AsyncIterator[SlowScanner]:
    """Gives no verdict before its gate is open."""
    scanner = SlowScanner(CAT)
    scanner.gate.clear()
    yield scanner
    scanner.gate.set()


@pytest.mark.parametrize("stream", BOTH, ids=["whole", "streamed"])
@pytest.mark.parametrize("mode", MODES)
async def test_nothing_waits_and_the_verdict_is_told_when_it_comes(
    slow: SlowScanner, mode: str, stream: bool
) -> None:
    desk = Desk(flagging(slow, stream=mode))
    arrived: list[str] = []

    async def model(call: Call) -> Chunks:
        arrived.append("request")
        for text in ("the ", "cat"):
            yield Chunk(0, {"content": text})
            arrived.append("chunk taken")  # the caller has it, and wants more
        yield Chunk(0, {}, "stop")

    call = a_cat(stream=stream)
    async with aclosing(desk.around(model)(call)) as chunks:
        out = [chunk async for chunk in chunks]
    assert arrived == ["request", "chunk taken", "chunk taken"]
    assert [chunk.delta for chunk in out] == [{"content": "the "}, {"content": "cat"}, {}]
    assert told(call, "input")["it"]["pending"] is told(call, "output")["it"]["pending"] is True
    call.receipt.note("trace", status=200)  # the request has ended, and its receipt was written
    slow.gate.set()
    await desk.flags.idle()
    for direction in ("input", "output"):
        facts = told(call, direction)["it"]
        assert (facts["action"], facts["labels"]) == ("flag", {"animal": 1})
        assert "pending" not in facts
    assert {receipt.request_id for _, receipt in desk.kept} == {call.request_id}
    page = desk.metrics.render()
    for direction in ("input", "output"):
        name = f'tollgate_guard_hits_total{{action="flag",direction="{direction}",guard="it"}} 1.0'
        assert name.encode() in page


async def test_nothing_is_scanned_before_the_caller_has_the_last_of_it() -> None:
    """The fast check takes the event loop's own time."""
    scanner = KeywordScanner(CAT)
    seen: list[int] = []

    async def model(call: Call) -> Chunks:
        for finish in (None, None, "stop"):
            await asyncio.sleep(0.001)  # a connection, a place in the queue, another token
            seen.append(len(scanner.seen))
            yield Chunk(0, {"content": "ok "}, finish)

    desk = Desk(flagging(scanner))
    async with aclosing(desk.around(model)(a_cat(stream=True))) as chunks:
        assert [chunk async for chunk in chunks]
    assert seen == [0, 0, 0]
    assert not scanner.seen
    await desk.flags.idle()
    assert sorted(text for text, _ in scanner.seen) == ["a cat", "ok ok ok "]


@pytest.mark.parametrize("stream", BOTH, ids=["whole", "streamed"])
async def test_a_judge_that_is_away_is_noted_and_that_is_all(stream: bool) -> None:
    desk = Desk(flagging(SlowScanner(CAT, failure=unavailable()), on_error="block"))

    async def model(call: Call) -> Chunks:
        yield Chunk(0, {"content": "the cat"}, "stop")

    call = a_cat(stream=stream)
    async with aclosing(desk.around(model)(call)) as chunks:
        assert [(chunk.delta, chunk.finish_reason) async for chunk in chunks] == [
            ({"content": "the cat"}, "stop")
        ]
    await desk.flags.idle()
    for direction in ("input", "output"):
        assert told(call, direction)["it"]["unscanned"] == "unavailable"
        # A cache keeps the answer: nothing was let through that a guard would have stopped.
        assert call.receipt.notes[f"guard_{direction}"].get("scanned") is not False


async def test_whoever_hangs_up_is_flagged_all_the_same(slow: SlowScanner) -> None:
    desk = Desk(flagging(slow))
    closed = asyncio.Event()

    async def model(call: Call) -> Chunks:
        try:
            yield Chunk(0, {"content": "a cat and"})
            await asyncio.sleep(60)
        finally:
            closed.set()

    call = a_cat(stream=True)
    stream = desk.around(model)(call)
    assert (await anext(stream)).delta == {"content": "a cat and"}
    await stream.aclose()
    assert closed.is_set()
    slow.gate.set()
    await desk.flags.idle()
    assert told(call, "output")["it"]["labels"] == told(call, "input")["it"]["labels"] == {"animal": 1}


async def test_a_request_that_is_refused_is_flagged_too() -> None:
    guards = guards_of(
        strict=(KeywordScanner(CAT), {"action": "block"}),
        it=(KeywordScanner({"a": "letter"}), {"action": "flag"}),
    )
    desk = Desk(guards)

    async def model(call: Call) -> Chunks:
        raise AssertionError("it was refused")
        yield

    call = a_cat(stream=False)
    with pytest.raises(errors.Blocked):
        await anext(desk.around(model)(call))
    await desk.flags.idle()
    assert told(call, "input")["it"]["labels"] == {"letter": 2}
    assert told(call, "input")["strict"]["action"] == "block"


async def test_they_see_what_was_written_and_said_and_not_what_others_made_of_it() -> None:
    both = {"on": ["input", "output"]}
    guards = guards_of(
        strict=(KeywordScanner(CAT), {**both, "action": "redact", "stream": "hold"}),
        it=(KeywordScanner(CAT), {**both, "action": "flag"}),
    )
    desk = Desk(guards)

    async def model(call: Call) -> Chunks:
        arguments = '{"to": "the c\\u0061t"}'
        yield Chunk(0, {"tool_calls": [{"index": 0, "function": {"name": "pet", "arguments": arguments}}]})
        yield Chunk(0, {"content": "cat", "reasoning_content": "cat"}, "stop")

    call = a_cat(stream=True)
    async with aclosing(desk.around(model)(call)) as chunks:
        assert "cat" not in str([chunk.delta async for chunk in chunks])
    await desk.flags.idle()
    assert told(call, "input")["it"]["labels"] == {"animal": 1}
    assert told(call, "output")["it"]["labels"] == {"animal": 3}
    assert told(call, "output")["strict"]["labels"] == {"animal": 3}


async def test_a_length_is_flagged_in_both_directions() -> None:
    rules = policy(guards={"length": {"on": ["input", "output"], "action": "flag", "max_characters": 4}})
    (config,) = rules.guards.values()
    assert isinstance(config, LengthGuard)
    desk = Desk(Guards(rules, {"length": build_scanner(config, NoSidecar(), None)}))

    async def model(call: Call) -> Chunks:
        for index, text in enumerate(("long enough", "ok")):
            yield Chunk(index, {"content": text}, "stop")

    call = a_cat(stream=True)
    async with aclosing(desk.around(model)(call)) as chunks:
        assert len([chunk async for chunk in chunks]) == 2
    await desk.flags.idle()
    assert (
        told(call, "input")["length"]["labels"] == told(call, "output")["length"]["labels"] == {"length": 1}
    )


async def test_what_waits_is_bounded(slow: SlowScanner) -> None:
    desk = Desk(guards_of(it=(slow, {"action": "flag"})), most=3)

    async def model(call: Call) -> Chunks:
        yield Chunk(0, {"content": "ok"}, "stop")

    calls = [a_cat(stream=False) for _ in range(5)]
    for call in calls:
        async with aclosing(desk.around(model)(call)) as chunks:
            assert [chunk async for chunk in chunks]
    slow.gate.set()
    await desk.flags.idle()
    assert [told(call, "input")["it"].get("unscanned", "") for call in calls] == [
        "", "", "", "too many wait for a verdict", "too many wait for a verdict",
    ]  # fmt: skip


async def test_what_is_under_way_at_the_end_is_said_not_to_be_judged(
    slow: SlowScanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.guards.scans.background.SECONDS_TO_CLOSE", 0.01)
    desk = Desk(guards_of(it=(slow, {"action": "flag", "timeout": "60s"})))

    async def model(call: Call) -> Chunks:
        yield Chunk(0, {"content": "ok"}, "stop")

    calls = [a_cat(stream=False) for _ in range(2)]
    for number, call in enumerate(calls):
        async with aclosing(desk.around(model)(call)) as chunks:
            assert [chunk async for chunk in chunks]
        if not number:
            await desk.flags.aclose()
    for call in calls:
        facts = told(call, "input")["it"]
        assert facts["unscanned"] == "the gateway is stopping"
        assert "pending" not in facts


async def test_a_receipt_that_is_not_closed_is_not_written_by_a_verdict() -> None:
    """That of an answer that callers share is never written; theirs are, and have what it says."""
    desk = Desk(flagging(KeywordScanner(CAT)))

    async def model(call: Call) -> Chunks:
        yield Chunk(0, {"content": "cat"}, "stop")

    shared, caller = a_cat(stream=False), a_cat(stream=False)
    async with aclosing(guard_output(desk.guards, desk.flags, desk.metrics)(model)(shared)) as chunks:
        assert [chunk async for chunk in chunks]
    for stage, facts in shared.receipt.notes.items():
        caller.receipt.note(stage, **facts)
    await desk.flags.idle()
    assert not desk.kept
    assert told(caller, "output")["it"]["labels"] == {"animal": 1}
