from __future__ import annotations

from dataclasses import fields, replace

import pytest

from gateway.types import ChatRequest, Native, Principal, Receipt, Usage
from gateway.wire.openai.usage import read_usage


@pytest.mark.parametrize(
    ("patterns", "model", "may"),
    [
        (("*",), "anything/at:all", True),
        (("gpt-*",), "gpt-4o", True),
        (("gpt-*",), "my-gpt-4o", False),
        (("gpt-4?",), "gpt-4o", True),
        (("gpt-4?",), "gpt-4", False),
        (("a", "b-*"), "b-1", True),
        (("a",), "A", False),
        ((), "a", False),
    ],
)
def test_a_key_may_use_what_its_patterns_match(patterns: tuple[str, ...], model: str, may: bool) -> None:
    assert Principal("k", "t", patterns).may_use(model) is may


def test_notes_of_one_stage_join() -> None:
    receipt = Receipt("req_1", 0.0)
    receipt.note("route", backend="a", after=1)
    receipt.note("route", backend="b")
    receipt.note("meter", tokens=1)
    assert receipt.notes == {"route": {"backend": "b", "after": 1}, "meter": {"tokens": 1}}


def test_a_request_with_other_parameters_is_otherwise_the_same() -> None:
    native = Native("anthropic", {"model": "m"}, lambda body: whole)
    whole = ChatRequest(
        *(
            "m",
            ({"role": "user", "content": "Hi"},),
            "text",
            True,
            True,
            3,
            {"seed": 1},
            True,
            True,
            native,
            True,
            "rerank",
            object(),  # type: ignore[arg-type]
        )
    )
    # None is at its default, so that one which is left out shows.
    assert all(getattr(whole, one.name) != one.default for one in fields(ChatRequest))
    made, expected = whole.having({"seed": 2}), replace(whole, params={"seed": 2})
    assert all(getattr(made, one.name) == getattr(expected, one.name) for one in fields(ChatRequest))


@pytest.mark.parametrize(
    ("request_", "prompts", "answers", "choices"),
    [
        (ChatRequest("m", messages=({},), n=2), 1, 2, 2),
        (ChatRequest("m", prompt="a", n=2, params={"best_of": 3}), 1, 3, 2),
        (ChatRequest("m", prompt=[1, 2]), 1, 1, 1),
        (ChatRequest("m", prompt=["a", "b"], n=2), 2, 4, 4),
        (ChatRequest("m", prompt=[[1], [2], [3]], params={"best_of": 2}), 3, 6, 3),
        (ChatRequest("m", prompt=[]), 1, 1, 1),
        (ChatRequest("m", prompt=["a", "b"], embeds=True), 2, 2, 2),
    ],
)
def test_prompts_answers_and_choices(request_: ChatRequest, prompts: int, answers: int, choices: int) -> None:
    assert (request_.prompt_count, request_.answers, request_.choices) == (prompts, answers, choices)


def test_no_part_of_usage_is_more_than_its_whole() -> None:
    """As a server may claim it."""
    claimed = read_usage(
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 10**7, "cache_write_tokens": -3},
            "completion_tokens_details": {"reasoning_tokens": 10**6},
        }
    )
    assert claimed == Usage(10, 5, cached=10, reasoning=5)
    assert Usage(10, 5, cached=4, cache_write=9, cache_write_1h=8).possible == Usage(
        10, 5, cached=4, cache_write=6, cache_write_1h=6
    )
    assert Usage(10, 5, cached=4, reasoning=5).possible == Usage(10, 5, cached=4, reasoning=5)
