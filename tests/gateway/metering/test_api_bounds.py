"""The most that requests to APIs which do not chat can use, and what is settled where nothing is told."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apis import Units
from gateway.metering.api_bounds import bound_of, settled
from gateway.policy.schema import Price
from gateway.types import ChatRequest, Usage

MINUTES = Price.model_validate({"thousand_searches": 2.0})
TOKENS = Price.model_validate({"input": 1.0, "output": 2.0})


def asked(api: Any, prompt: str = "", **params: Any) -> ChatRequest:
    return ChatRequest("m", prompt=prompt, params=params, api=api)


@pytest.mark.parametrize(
    ("query", "documents", "searches"),
    [
        ("q", ["a"], 1),
        ("q", ["a"] * 100, 1),
        ("q", ["a"] * 101, 2),
        ("q", ["a" * 499], 1),
        ("q", ["a" * 500] * 51, 2),
        ("q" * 400, ["a" * 300] * 51, 2),
        ("q", [{"text": "a" * 600, "more": ["b" * 600]}] * 50, 2),
        ("q", ["ü" * 300] * 51, 2),
    ],
)
def test_searches(query: str, documents: list[Any], searches: int) -> None:
    """No tokenizer makes more pieces of 500 tokens than there are of 500 bytes."""
    bound = bound_of(asked("rerank", query, documents=documents))
    assert bound.units == Units("search", searches)
    assert not bound.exact


@pytest.mark.parametrize(
    ("one", "other", "tokens"),
    [
        ("abc", "de", 3 + 2 + 4),
        ("abc", ["d", "e"], 8 + 8),
        (["abc"], ["d", "e"], 16),
        (["a", "b"], ["d", "e"], 12),
    ],
    ids=["one pair", "one with two", "a list of one", "in pairs"],
)
def test_pairs(one: Any, other: Any, tokens: int) -> None:
    bound = bound_of(asked("score", one, text_2=other))
    assert (bound.units, bound.prompt, bound.answer, bound.free) == (None, tokens, 0, False)


def test_what_is_known_exactly() -> None:
    spoken = bound_of(asked("speech", "Grüße", speed=0.5))
    assert (spoken.units, spoken.exact) == (Units("character", 5), True)
    assert spoken.answer > bound_of(asked("speech", "Grüße")).answer
    drawn = bound_of(asked("image_generation", "a", n=3, quality="high", size="1024x1024"))
    assert (drawn.units, drawn.exact) == (Units("image", 3, "high 1024x1024"), True)
    assert drawn.answer >= 3 * 4160, "by OpenAI's table"
    assert bound_of(asked("image_edit", "a", n="2")).units == Units("image", 2, " ")
    assert bound_of(asked("image_generation", "a", quality="max")).answer > drawn.answer / 3
    assert bound_of(asked("tokenize", "a" * 1000)).prompt == 0


@pytest.mark.parametrize(
    ("price", "told", "expected", "estimated"),
    [
        (MINUTES, Usage(0, 0, units=Units("search", 1)), Usage(7, 0, units=Units("search", 1)), False),
        (MINUTES, None, Usage(7, 0, units=Units("search", 2)), True),
        (MINUTES, Usage(40, 0), Usage(40, 0, units=Units("search", 2)), True),
        (TOKENS, Usage(40, 0), Usage(40, 0, units=Units("search", 2)), False),
        (None, None, Usage(7, 0, units=Units("search", 2)), False),
    ],
)
def test_what_is_settled(price: Price | None, told: Usage | None, expected: Usage, estimated: bool) -> None:
    request = asked("rerank", "query", documents=["a"] * 101)
    assert settled(request, price, told, 7) == (expected, estimated)


def test_by_tokens_that_nobody_tells_the_bound_is_settled() -> None:
    request = asked("rerank", "query", documents=["abc"] * 10)
    usage, estimated = settled(request, TOKENS, None, 7)
    assert (usage.prompt, estimated) == (10 * (3 + 5 + 4), True)
    assert settled(asked("tokenize", "a" * 99), TOKENS, None, 7) == (Usage(0, 0), False)
