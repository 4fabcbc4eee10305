from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ContextTooLong
from gateway.stages.truncate import HEADER, shortened, truncate
from gateway.types import Call, Chunk, Chunks, TokenEstimate
from tests.fakes import a_call

pytestmark = pytest.mark.anyio


def turns(*roles: str) -> list[dict[str, Any]]:
    """Messages whose roles begin with these letters, each of the same length."""
    names = {name[0]: name for name in ("system", "user", "assistant", "tool")}
    return [{"role": names[role], "content": f"{i:04d} " + "x" * 200} for i, role in enumerate(roles)]


def left(messages: list[dict[str, Any]], share: float) -> str:
    """The places of what is left."""
    found = shortened(messages, share)
    return "-" if found is None else " ".join(message["content"][3] for message in found)


@pytest.mark.parametrize(
    ("roles", "share", "expected"),
    [
        ("suaua", 0.5, "0 3 4"),
        ("suauau", 0.75, "0 3 4 5"),
        ("uatatu", 0.9, "0 3 4 5"),  # the tool's result goes with its call
        ("uatatat", 0.6, "0 3 4 5 6"),  # the question stays
        ("uaua", 0.01, "2 3"),
        ("sua", 0.5, "-"),
        ("u", 0.5, "-"),
        ("uat", 0.5, "-"),
        ("", 0.5, "-"),
    ],
)
def test_what_is_left(roles: str, share: float, expected: str) -> None:
    assert left(turns(*roles), share) == expected


@given(st.text("suat", max_size=30), st.floats(0.01, 0.99))
def test_system_texts_the_last_question_and_calls_stay(roles: str, share: float) -> None:
    messages = turns(*roles)
    found = shortened(messages, share)
    if found is None:
        return
    assert len(found) < len(messages)
    assert [m for m in found if m["role"] == "system"] == [m for m in messages if m["role"] == "system"]
    questions = [m for m in messages if m["role"] == "user"]
    assert not questions or questions[-1] in found
    spoken = [m for m in messages if m["role"] != "system"]
    for before, message in pairwise(spoken):
        assert message["role"] != "tool" or message not in found or before in found


def too_long() -> ContextTooLong:
    return ContextTooLong("too long", status=400, type=None, param=None, code=None)


class Model:
    """One whose context holds so many messages."""

    def __init__(self, holds: int) -> None:
        self.holds = holds
        self.asked: list[int] = []

    async def __call__(self, call: Call) -> Chunks:
        count = len(call.request.messages or ())
        self.asked.append(count)
        if count > self.holds:
            raise too_long()
        yield Chunk(delta={"content": "fine"})


def asking(roles: str, *, truncates: bool = True) -> Call:
    call = a_call()
    call.request = replace(call.request, messages=tuple(turns(*roles)), truncates=truncates)
    call.estimate = TokenEstimate(prompt=1000, expected=10, reserved=10)
    return call


async def answer(call: Call, model: Model) -> list[Chunk]:
    async with aclosing(truncate()(model)(call)) as chunks:
        return [chunk async for chunk in chunks]


async def test_the_oldest_messages_are_left_out_until_it_fits() -> None:
    call, model = asking("s" + "ua" * 10 + "u"), Model(6)
    assert [chunk.delta for chunk in await answer(call, model)] == [{"content": "fine"}]
    assert model.asked[0] == 22
    assert model.asked == sorted(model.asked, reverse=True)
    assert call.reply_headers[HEADER] == str(22 - model.asked[-1])
    assert call.receipt.notes["truncate"] == {"messages": 22, "left_out": 22 - model.asked[-1]}
    assert call.estimate is not None
    assert call.estimate.prompt < 400


async def test_where_the_context_is_known_one_try_is_enough() -> None:
    call, model = asking("ua" * 10 + "u"), Model(6)
    known = call.policy.models[call.model].model_copy(update={"context": 250})
    call.policy = call.policy.model_copy(update={"models": {call.model: known}})
    await answer(call, model)
    assert len(model.asked) == 2


async def test_nothing_is_left_out_unasked() -> None:
    model = Model(2)
    with pytest.raises(ContextTooLong):
        await answer(asking("uauau", truncates=False), model)
    assert model.asked == [5]


async def test_one_question_that_is_too_long_is_refused() -> None:
    model = Model(0)
    with pytest.raises(ContextTooLong):
        await answer(asking("su"), model)
    assert model.asked == [2]
