"""Counting what an answer took, where its server does not say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.bill import Bill, bill_of
from gateway.metering.usage_counter import MARKS, UsageCounter
from gateway.policy.schema import Target
from gateway.types import Chunk, UpstreamUsage, Usage
from tests.fakes import TARGET, policy

EXPECTED = 50


def of(*chunks: Chunk, whole: bool = True, **more: int) -> tuple[Usage, bool]:
    usage_counter = UsageCounter()
    for chunk in chunks:
        usage_counter.add(chunk)
    return usage_counter.of(7, EXPECTED, whole=whole, **more)


def said(usage: Usage | None = None, **delta: Any) -> Chunk:
    return Chunk(delta=delta, usage=usage)


@pytest.mark.parametrize(
    ("delta", "tokens"),
    [
        ({"role": "assistant", "content": ""}, 0),
        ({"content": "y" * 41}, 11),
        ({"role": "assistant", "content": "y" * 41}, 11),
        ({"content": None, "refusal": "n" * 40}, 10),
        ({"reasoning_content": "t" * 40}, 10),
        ({"reasoning": "t" * 40, "reasoning_content": "t" * 40}, 10),
        ({"reasoning": "t" * 40, "reasoning_details": [{"text": "t" * 40}]}, 10),
        ({"function_call": {"name": "f" * 4, "arguments": "x" * 36}}, 10),
        (
            {"tool_calls": [{"id": "c" * 40, "type": "custom", "custom": {"name": "f", "input": "x" * 39}}]},
            10,
        ),
        ({"audio": {"id": "a" * 40, "data": "b" * 4000, "transcript": "w" * 40}}, 10),
        ({"content": [{"type": "text", "text": "y" * 40}]}, 10),
        ({"something_new": "y" * 40}, 10),
        ({"embedding": "AAAA" * 100}, 0),
        ({"content": "\u4f60\u597d\u4e16\u754c" * 5}, 25),
    ],
    ids=lambda value: str(value)[:40],
)
def test_whatever_a_model_says_is_counted(delta: dict[str, Any], tokens: int) -> None:
    assert of(Chunk(delta=delta)) == (Usage(7, tokens), True)


@pytest.mark.parametrize("text", ["w " * 300, "7," * 300, "{} " * 300, "!? " * 300, "123 " * 300])
def test_dense_text_is_no_prose(text: str) -> None:
    counted = of(said(role="assistant", content=text))[0].completion
    assert counted >= 300
    parts = [text[at : at + 40] for at in range(0, len(text), 40)]
    assert of(*(said(content=part) for part in parts))[0].completion == pytest.approx(counted, rel=0.1)
    piecewise = UsageCounter()
    for part in parts:
        piecewise.add_text(part)
    assert piecewise.counted == pytest.approx(counted, rel=0.1)


def test_what_limits_hold_is_what_a_text_can_be_at_most() -> None:
    """No tokenizer makes more tokens of it than it has bytes."""
    text = said(content="w " * 300)
    assert of(text, most=4096) == (Usage(7, 600 + MARKS), True)
    assert of(text, most=400) == (Usage(7, 400), True)
    assert of(text, most=100) == (Usage(7, 300), True), "a server that went beyond its cap"
    assert of(said(content="\u4f60" * 5), most=4096) == (Usage(7, 15 + MARKS), True)
    assert of(text, whole=False, most=4096) == (Usage(7, 600 + MARKS), True)
    assert of(said(Usage(8, 1), content="w " * 300), whole=False, most=4096) == (Usage(8, 600 + MARKS), True)
    assert of(text, Chunk(usage=Usage(8, 0)), most=4096) == (Usage(8, 600 + MARKS), True)
    assert of(text, Chunk(usage=Usage(8, 310)), most=4096) == (Usage(8, 310), False), "the server tells"


def test_what_limits_hold_where_an_answer_ended_at_its_cap_or_may_hide_thoughts() -> None:
    ended = Chunk(finish_reason="length", delta={})
    assert of(ended, most=4096) == (Usage(7, 4096), True)
    assert of(said(content="So"), ended, most=4096) == (Usage(7, 4096), True)
    assert of(said(content="So"), ended) == (Usage(7, 1), True)
    assert of(said(content="So"), thoughts=1000, most=4096) == (Usage(7, 1000 + 2 + MARKS), True)
    assert of(said(content="So"), thoughts=4096, most=4096) == (Usage(7, 4096), True)
    shown = said(reasoning_content="Hm"), said(content="So")
    assert of(*shown, thoughts=1000, most=4096) == (Usage(7, 4 + MARKS), True)
    assert of(whole=False, most=4096) == (Usage(7, EXPECTED), True)
    assert of(said(content="So"), most=4096, left_out=100) == (Usage(7, 102 + MARKS), True)
    assert of(most=4096, left_out=100) == (Usage(7, 100 + MARKS), True), "all of it was left out"
    assert of(most=4096, thoughts=4096) == (Usage(7, 4096), True)


def test_all_choices_count() -> None:
    one, other = Chunk(index=0, delta={"content": "y" * 40}), Chunk(index=1, delta={"content": "y" * 20})
    assert of(one, other) == (Usage(7, 15), True)


def test_each_piece_of_a_stream_is_a_token_at_least() -> None:
    assert of(*[said(content="a")] * 9) == (Usage(7, 9), True)
    assert of(*[said(content="a" * 40)] * 9) == (Usage(7, 90), True)


def test_what_the_server_says_counts() -> None:
    assert of(said(Usage(8, 1), content="a"), said(Usage(8, 3), content="a")) == (Usage(8, 3), False)
    assert of(said(content=""), said(Usage(8, 0), content="")) == (Usage(8, 0), False)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("told", [1, 61])
def test_a_usage_that_the_text_belies_is_not_believed(told: int, whole: bool) -> None:
    """A server that tells of each piece by itself, or of one choice: 1,248 characters are 62 tokens in any language."""
    usage_counter = UsageCounter()
    usage_counter.add(said(content="word " * 250))
    usage_counter.add(Chunk(usage=Usage(8, told)))
    assert usage_counter.reported is None
    assert usage_counter.of(7, EXPECTED, whole=whole) == (Usage(8, 313), True)


def test_a_usage_that_may_be_true_is_believed() -> None:
    """Pretty-printed code, or a table, has long tokens; of a short answer nothing is known."""
    for text, told in (("word " * 250, 63), ("y" * 271, 1)):
        usage_counter = UsageCounter()
        usage_counter.add(said(content=text))
        usage_counter.add(Chunk(usage=Usage(8, told)))
        assert usage_counter.reported == Usage(8, told)


def test_a_usage_of_nothing_at_all_for_an_answer_that_says_something_is_none() -> None:
    assert of(said(content="a" * 40), Chunk(usage=Usage(0, 0))) == (Usage(7, 10), True)


def test_what_the_server_leaves_out_of_its_usage_is_counted() -> None:
    assert of(said(content="a" * 40), Chunk(usage=Usage(8, 0))) == (Usage(8, 10), True)
    assert of(said(content="a" * 40), Chunk(usage=Usage(0, 12))) == (Usage(7, 12), True)


def test_an_answer_that_was_cut() -> None:
    """Anthropic's first event tells of the prompt, and of one token of the answer."""
    assert of(said(Usage(8, 1), content="a"), *[said(content="a")] * 2, whole=False) == (Usage(8, 3), True)
    assert of(said(Usage(8, 9), content="a"), whole=False) == (Usage(8, 9), False)
    assert of(said(content="a"), whole=False) == (Usage(7, 1), True)
    assert of(whole=False) == (Usage(7, EXPECTED), True)


def test_a_bill_adds_up_each_spending_at_its_own_price() -> None:
    dear = Target(backend="up", model="dear")
    rules = policy(prices={"upstream-model": {"input": 1, "output": 2}, "dear": {"input": 10, "output": 20}})
    free = Target(backend="up", model="new")
    spent = [
        UpstreamUsage(TARGET, Usage(7, 4), True, "step", "small"),
        UpstreamUsage(dear, Usage(8, 2), False, "answer", "m"),
        UpstreamUsage(free, Usage(1, 1), False, "attempt", "m"),
    ]
    bill = bill_of(rules, spent)
    assert [charge.nanodollars for charge in bill.charges] == [15_000, 120_000, 0]
    assert (bill.tokens, bill.nanodollars, bill.estimated, bill.unpriced) == (23, 135_000, True, ("up/new",))
    assert bill.answer == (spent[1], 120_000)
    assert [charge.upstream.purpose for charge in bill.others] == ["step", "attempt"]
    assert bill_of(rules, []) == Bill() and not Bill().others


def test_thoughts_that_are_kept_back_count_in_an_answer_that_was_cut() -> None:
    def cut(*chunks: Chunk) -> tuple[Usage, bool]:
        usage_counter = UsageCounter()
        for chunk in chunks:
            usage_counter.add(chunk)
        return usage_counter.of(7, 50, whole=False, thoughts=1000)

    assert cut(said(content="a" * 40)) == (Usage(7, 1010), True)
    assert cut(said(reasoning_content="a" * 40)) == (Usage(7, 10), True)
    assert cut(said(content="a" * 40), Chunk(usage=Usage(8, 30))) == (Usage(8, 30), False)
    assert cut() == (Usage(7, 50), True)


@given(st.lists(st.text(min_size=1, max_size=20), max_size=12))
def test_pieces_that_came_together_count_as_they_do_one_by_one(texts: list[str]) -> None:
    together, alone = UsageCounter(), UsageCounter()
    together.add_texts(texts)
    for text in texts:
        alone.add_text(text)
    assert (together.counted, together.proven, together.most) == (alone.counted, alone.proven, alone.most)
