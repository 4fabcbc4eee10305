"""One stage for all that only observes: who is told what, in which order, whatever fails."""

from __future__ import annotations

import logging
from contextlib import aclosing

import pytest

from gateway.errors import RateLimited, UpstreamFailed
from gateway.stages.record import record
from gateway.types import Call, Chunk, Chunks
from tests.fakes import a_call

pytestmark = pytest.mark.anyio


class Spy:
    """Writes down what it is called with."""

    def __init__(
        self, name: str, seen: list[tuple[object, ...]], *, refuses: bool = False, breaks: bool = False
    ):
        self.name, self.seen, self.refuses, self.breaks = name, seen, refuses, breaks

    def __call__(self, call: Call) -> Spy:
        return self

    async def begin(self) -> None:
        if self.refuses:
            raise RateLimited("no")
        self.seen.append((self.name, "begins"))

    def chunk(self, chunk: Chunk) -> None:
        self.seen.append((self.name, chunk.index))

    def end(self, error: BaseException | None) -> None:
        self.seen.append((self.name, "ends", type(error)))
        if self.breaks:
            raise ValueError("broken")


class Blind(Spy):
    chunk = None  # type: ignore[assignment]


async def two(call: Call) -> Chunks:
    yield Chunk(index=0)
    yield Chunk(index=1)


async def fails(call: Call) -> Chunks:
    raise UpstreamFailed("gone")
    yield


async def test_the_first_begins_first_and_ends_last() -> None:
    seen: list[tuple[object, ...]] = []
    handler = record(Blind("a", seen), Spy("b", seen))(two)
    assert [chunk.index async for chunk in handler(a_call())] == [0, 1]
    ok = type(None)
    assert seen == [
        ("a", "begins"),
        ("b", "begins"),
        ("b", 0),
        ("b", 1),
        ("b", "ends", ok),
        ("a", "ends", ok),
    ]


async def test_one_that_refuses_is_not_ended_and_those_before_it_are() -> None:
    seen: list[tuple[object, ...]] = []
    handler = record(Spy("a", seen), Spy("b", seen, refuses=True), Spy("c", seen))(two)
    with pytest.raises(RateLimited):
        await anext(handler(a_call()))
    assert seen == [("a", "begins"), ("a", "ends", RateLimited)]


async def test_an_error_and_a_caller_that_leaves_end_them_all() -> None:
    seen: list[tuple[object, ...]] = []
    with pytest.raises(UpstreamFailed):
        await anext(record(Spy("a", seen))(fails)(a_call()))
    async with aclosing(record(Spy("b", seen))(two)(a_call())) as chunks:
        await anext(chunks)
    assert [entry for entry in seen if entry[1] == "ends"] == [
        ("a", "ends", UpstreamFailed),
        ("b", "ends", GeneratorExit),
    ]


async def test_one_that_breaks_at_the_end_costs_neither_answer_nor_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[tuple[object, ...]] = []
    handler = record(Spy("a", seen), Spy("b", seen, breaks=True))(two)
    with caplog.at_level(logging.ERROR):
        assert len([chunk async for chunk in handler(a_call())]) == 2
    assert seen[-1] == ("a", "ends", type(None))
    assert "could not be recorded" in caplog.text
