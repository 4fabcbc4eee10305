"""The parts of a batch by themselves: its input, its window of lines, what ends a line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batches import validation
from gateway.batches.batch import Batch, Creator
from gateway.batches.input_lines import InputLine, LineError, read_lines
from gateway.batches.line import Line
from gateway.batches.model_run import Window
from gateway.batches.outcome import MOST_FAILURES, delay_after, is_final
from gateway.batches.pace import LONGEST, SHORTEST, Pace
from gateway.batches.validation import Checked, Validation
from gateway.errors import (
    AuthUnavailable,
    BadRequest,
    BudgetSpent,
    Internal,
    Overloaded,
    RateLimited,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from tests.gateway.batches.submitting import CHAT, line, written

pytestmark = pytest.mark.anyio


async def parse(data: bytes, endpoint: str) -> list[InputLine | LineError | None]:
    return read_lines(data, endpoint)


async def check(data: bytes, sizes: list[int], **more: Any) -> tuple[Checked, list[Line]]:
    kept: list[Line] = []

    async def keep(lines: Any) -> None:
        kept.extend(lines)

    async def parts() -> AsyncIterator[bytes]:
        rest = data
        for size in sizes:
            yield rest[:size]
            rest = rest[size:]
        yield rest

    given: dict[str, Any] = {"most_lines": 50_000, "refusal": lambda model: None, **more}
    return await Validation(CHAT, parse=parse, keep=keep, **given).of(parts()), kept


@given(
    st.lists(st.text(max_size=30), max_size=30),
    st.lists(st.integers(0, 400), max_size=20),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_lines_are_the_same_however_they_arrive(texts: list[str], sizes: list[int], end: bytes) -> None:
    data = end.join(orjson.dumps(line(f"{i}", text)) for i, text in enumerate(texts))
    before, validation.CHUNK = validation.CHUNK, 100
    try:
        checked, kept = asyncio.run(check(data, sizes))
    finally:
        validation.CHUNK = before
    assert (checked.lines, checked.models) == (len(texts), {"fake"} if texts else set())
    assert [one.number for one in kept] == list(range(1, len(texts) + 1))
    said = [orjson.loads(one.body)["messages"][0]["content"] for one in kept]
    assert said == texts


async def test_a_line_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "LONGEST_LINE", 1000)
    monkeypatch.setattr(validation, "CHUNK", 100)
    checked, kept = await check(written(line("a")) + b"\n" + b"x" * 5000, [100] * 40)
    assert [(one["line"], one["code"]) for one in checked.errors] == [(2, "invalid_json_line")]
    assert [one.custom_id for one in kept] == ["a"]


async def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    checked, _ = await check(b"\xef\xbb\xbf" + written(line("a")), [])
    assert (checked.lines, checked.errors) == (1, [])


async def test_no_more_errors_are_listed_than_anyone_reads() -> None:
    checked, kept = await check(b"{}\n" * 3000, [])
    assert (len(checked.errors), kept) == (validation.MOST_ERRORS, [])


async def test_empty_lines_do_not_go_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_NUMBER", 100)
    checked, _ = await check(b"\n" * 200, [])
    assert [one["code"] for one in checked.errors] == ["too_many_tasks"]


async def test_texts_to_embed_are_bounded_over_all_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_INPUTS", 5)
    url = "/v1/embeddings"

    def embeds(*inputs: Any) -> bytes:
        bodies = [{"model": "e", "input": one} for one in inputs]
        return written(
            *({"custom_id": f"{i}", "method": "POST", "url": url, "body": b} for i, b in enumerate(bodies))
        )

    async def codes(data: bytes) -> list[Any]:
        async def keep(lines: Any) -> None:
            del lines

        async def parts() -> AsyncIterator[bytes]:
            yield data

        checked = await Validation(url, most_lines=9, parse=parse, keep=keep, refusal=lambda _: None).of(
            parts()
        )
        return [one["code"] for one in checked.errors]

    assert await codes(embeds("a", ["b", "c"], [1, 2, 3, 4, 5, 6])) == []
    assert await codes(embeds(["a"] * 3, ["b"] * 3)) == ["too_many_tasks"]


def test_lines_that_begin_alike_are_neighbours() -> None:
    def prefix(*parts: str) -> str:
        (one,) = read_lines(written(line("a", "".join(parts))), CHAT)
        assert isinstance(one, InputLine)
        return one.prefix

    shared, other = "You are a careful clerk. " * 200, "You are a careless clerk. " * 200
    found = sorted([prefix(shared, "1"), prefix(other, "2"), prefix(shared, "3"), prefix(other, "4")])
    assert found[0] == found[1] != found[2] == found[3]
    longer = shared[:2000]
    alike = [prefix(longer, "x" * 3000), prefix(longer, "y" * 3000), prefix(other)]
    assert alike[0][:24] == alike[1][:24] != alike[2][:24]
    assert alike[0] != alike[1]


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (None, True),
        (BadRequest("no"), True),
        (BudgetSpent("spent"), True),
        (Internal("bug"), True),
        (ValueError("bug"), True),
        (RateLimited("later"), False),
        (Overloaded("later"), False),
        (UpstreamUnavailable("away"), False),
        (UpstreamFailed("key", code="upstream_auth"), False),
        (UpstreamFailed("broken"), False),
        (UpstreamTimeout("slow"), False),
        (AuthUnavailable("later"), False),
        (asyncio.CancelledError(), False),
        (GeneratorExit(), False),
    ],
    ids=repr,
)
def test_what_passes_by_itself_is_no_result(error: BaseException | None, final: bool) -> None:
    assert is_final(error, 0) is final


def test_a_server_that_fails_on_one_line_is_asked_a_few_times() -> None:
    assert [is_final(UpstreamFailed("broken"), n) for n in range(MOST_FAILURES)] == [False, False, True]
    assert not is_final(UpstreamUnavailable("away"), 99)


def test_pauses_grow_and_heed_what_is_asked_for() -> None:
    away = UpstreamUnavailable("away")
    pauses = [delay_after(away, n) for n in range(1, 9)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1.0, 60.0)
    assert delay_after(RateLimited("later", retry_after=90.0), 1) == 90.0
    assert delay_after(RateLimited("tomorrow", retry_after=80_000.0), 1) == 600.0


def test_the_window_doubles_until_there_is_no_room_and_then_creeps() -> None:
    window = Window()
    sizes = []
    for _ in range(5):
        size = next(n for n in range(1000) if not window.room(n, 1000))
        sizes.append(size)
        for _ in range(size):
            window.start()
            window.went_well(10_000, waited=False)
    assert sizes == [2, 4, 8, 16, 32]
    started = window.start()
    window.congested(started)
    window.congested(started)
    assert (window.room(31, 1000), window.room(32, 1000)) == (True, False)
    window.congested(window.start())
    assert not window.room(16, 1000)
    assert not window.room(3, 3)


def test_ids_of_lines_are_those_of_requests_and_differ() -> None:
    batches = [
        Batch(f"batch_{n:032x}", Creator("k", "t", "d", ("*",)), CHAT, "file-1", 1, 2) for n in (1, 2**60)
    ]
    ids = [batch.request_id(number) for batch in batches for number in (1, 2, 50_000)]
    assert len(set(ids)) == 6
    assert {len(one) for one in ids} == {28}
    low, high = batches[0].request_ids
    assert [low <= one <= high for one in ids] == [True] * 3 + [False] * 3


class Loop:
    """A clock, and a processor that is used for a share of the time that passes; timers come late by ``lag``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.used = 0.0
        self.share = self.lag = 0.0
        monkeypatch.setattr("gateway.batches.pace.asyncio.sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        passed = seconds + self.lag
        self.now += passed
        self.used += self.share * passed


async def test_lines_start_more_slowly_while_the_event_loop_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    pace = Pace(lambda: loop.now, lambda: loop.used)

    async def gap_after(turns: int) -> float:
        for _ in range(turns):
            await pace.turn()
        return pace.gap

    assert await gap_after(1000) == SHORTEST
    loop.share = 0.8
    assert await gap_after(3000) == LONGEST
    loop.share = 0.3
    assert await gap_after(3000) == SHORTEST
    loop.lag = 0.05
    assert await gap_after(100) > 10 * SHORTEST
