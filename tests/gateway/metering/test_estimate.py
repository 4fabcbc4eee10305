from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering import estimate as module
from gateway.metering.estimate import FIRST_ANSWER, FIRST_EXPECTED, Estimator
from gateway.types import Call, Principal, TokenEstimate, Usage
from tests.fakes import a_call, policy

SAYING = "The quick brown fox jumps over the lazy dog. "
"""10 tokens with OpenAI's tokenizers."""


def estimate(estimator: Estimator | None = None, **request: Any) -> TokenEstimate:
    return (estimator or Estimator()).estimate(a_call(**request))


def told(estimator: Estimator, usage: Usage, **request: Any) -> None:
    call = a_call(**request)
    call.estimate = estimator.estimate(call)
    estimator.learn(call, usage)


@pytest.mark.parametrize("times", [1, 10, 100, 1000])
def test_the_text_decides(times: int) -> None:
    prompt = estimate(messages=({"role": "user", "content": SAYING * times},)).prompt
    assert 10 * times <= prompt <= 18 * times + 20


def test_what_counts_besides_the_text() -> None:
    plain = estimate().prompt
    picture = [
        {"type": "text", "text": "Hello"},
        {"type": "image_url", "image_url": {"url": "data:" + "x" * 9999}},
    ]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}" * 100}}
    tool = {"type": "function", "function": {"name": "f", "description": "d" * 400}}
    for more, least in [
        ({"messages": ({"role": "user", "content": picture},)}, 1105),
        ({"messages": ({"role": "assistant", "content": None, "tool_calls": [call]},)}, 50),
        ({"params": {"tools": [tool]}}, 100),
        ({"params": {"response_format": {"json_schema": "s" * 400}}}, 100),
        ({"messages": ({"role": "user", "content": "Hello"},) * 10}, 40),
    ]:
        assert plain + least * 0.9 <= estimate(**more).prompt <= plain + least * 3


def test_other_scripts_need_more_tokens() -> None:
    assert estimate(messages=({"role": "user", "content": "東京都は日本の首都です。" * 10},)).prompt >= 120


@pytest.mark.parametrize(("prompt", "tokens"), [([1, 2, 3], 3), ([[1, 2], [3, 4, 5]], 5), ([7] * 5000, 5000)])
def test_token_ids_are_counted(prompt: Any, tokens: int) -> None:
    assert estimate(prompt=prompt).prompt == tokens


@pytest.mark.parametrize(
    ("request_", "reserved"),
    [
        ({"params": {"max_tokens": 10}}, 10),
        ({"params": {"max_tokens": 10, "max_completion_tokens": 30}}, 30),
        ({"params": {"max_tokens": 30, "max_completion_tokens": 10}, "n": 2}, 60),
        ({"params": {"max_tokens": 7}, "prompt": "a"}, 7),
        ({"params": {"max_tokens": 7}, "prompt": ["a", "b"]}, 14),
        ({"params": {"max_tokens": 7}, "prompt": [[1], [2], [3]], "n": 2}, 42),
        ({"params": {"max_tokens": 7, "best_of": 5}, "prompt": [1, 2], "n": 2}, 35),
        ({"params": {}}, FIRST_ANSWER),
        ({"params": {"max_tokens": None, "best_of": None}, "n": 3}, 3 * FIRST_ANSWER),
        ({"params": {"max_completion_tokens": "many"}, "prompt": ["a", "b"]}, 2 * FIRST_ANSWER),
    ],
)
def test_reserved(request_: dict[str, Any], reserved: int) -> None:
    found = estimate(**request_)
    assert found.reserved == reserved
    assert 1 <= found.expected <= reserved


@given(factor=st.floats(0.5, 4), fixed=st.integers(0, 60), spread=st.floats(0, 0.3), seed=st.integers(0, 99))
def test_learned_prompts_are_covered(factor: float, fixed: int, spread: float, seed: int) -> None:
    """Whatever the tokenizer and template, few estimates are too low, and they are not far too high."""
    rng, estimator = random.Random(seed), Estimator()
    low, ratios = 0, []
    for i in range(200):
        content = "x" * int(10 ** rng.uniform(0.5, 4.5))
        messages = ({"role": "user", "content": content},)
        text = module.measure(a_call(messages=messages).request)[0]
        actual = 1 + round(fixed + text * factor * rng.uniform(1 - spread, 1 + spread))
        guess = estimate(estimator, messages=messages).prompt
        told(estimator, Usage(actual, 1), messages=messages)
        if i >= 50:
            low += guess < actual
            if text > 300:
                ratios.append(guess / actual)
    assert low <= 150 * 0.15
    assert sum(ratios) / len(ratios) < 2.2


def test_short_prompts_teach_what_they_come_to_where_none_is_long() -> None:
    estimator = Estimator()
    text = "x" * 160  # 47 tokens at four characters each, with what a message and a chat add
    first = estimate(estimator, messages=({"role": "user", "content": text},)).prompt
    for _ in range(100):
        told(estimator, Usage(47, 5), messages=({"role": "user", "content": text},))
    learned = estimate(estimator, messages=({"role": "user", "content": text},)).prompt
    assert first > 1.3 * 47
    assert 47 <= learned <= 1.1 * 47


def test_models_are_learned_apart() -> None:
    estimator = Estimator()
    for _ in range(9):
        told(estimator, Usage(3000, 5), messages=({"role": "user", "content": "x" * 4000},))
    call = a_call(messages=({"role": "user", "content": "x" * 4000},))
    assert 3000 <= estimator.estimate(call).prompt <= 4000
    assert estimator.estimate(replace(call, model="other")).prompt < 1500


def test_answers_are_learned_by_key_and_model() -> None:
    estimator = Estimator()

    def call(key: str, model: str = "m", **request: Any) -> Call:
        made = a_call(principal=Principal(key, "t"), **request)
        made.model = model
        return made

    for length in [90, 100, 110] * 10:
        made = call("short")
        made.estimate = estimator.estimate(made)
        estimator.learn(made, Usage(10, length))
    learned = estimator.estimate(call("short"))
    assert 90 <= learned.expected <= 110
    assert 105 <= learned.reserved <= 150
    assert estimator.estimate(call("short", n=3)).expected == pytest.approx(3 * learned.expected, abs=3)
    assert estimator.estimate(call("short", "new")).expected == FIRST_EXPECTED
    assert estimator.estimate(call("new")).expected == learned.expected, "what the model does for others"
    assert estimator.estimate(call("short", params={"max_tokens": 40})).expected == 40


def test_what_is_known_well_still_follows_what_changes() -> None:
    estimator = Estimator()
    for length in [100] * 200 + [500] * 200:
        told(estimator, Usage(9, length))
    assert 450 <= estimate(estimator).expected <= 500


def test_one_key_learns_nothing_from_anothers_prompts_once_it_has_its_own() -> None:
    estimator = Estimator()

    def told_by(key: str, tokens: int) -> None:
        told(estimator, Usage(tokens, 5), principal=Principal(key, "t"))

    told_by("plain", 9)
    for _ in range(20):
        told_by("odd", 8000)
    guess = estimator.estimate(a_call(principal=Principal("plain", "t")))
    assert guess.prompt < 50
    stranger = estimator.estimate(a_call(principal=Principal("new", "t")))
    assert stranger.least < 50 < stranger.prompt


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ],
)
@pytest.mark.parametrize("tokens", [20, 9000])
def test_what_is_no_text_teaches_nothing_about_text(part: dict[str, Any], tokens: int) -> None:
    estimator = Estimator()
    before = estimator.estimate(a_call())
    content = [{"type": "text", "text": "What is this?"}, part]
    told(estimator, Usage(tokens, 5), messages=({"role": "user", "content": content},))
    assert estimator.estimate(a_call()).prompt == before.prompt


def test_a_cut_answer_does_not_tell_its_length() -> None:
    estimator = Estimator()
    for _ in range(9):
        told(estimator, Usage(5, 10), params={"max_tokens": 10})
    assert estimate(estimator).reserved == FIRST_ANSWER
    told(estimator, Usage(5, 9), params={"max_tokens": 10})
    assert estimate(estimator).expected == 9


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 10)
    estimator = Estimator()
    for i in range(100):
        made = replace(a_call(principal=Principal(f"k{i}", "t")), model=f"m{i}")
        made.estimate = estimator.estimate(made)
        estimator.learn(made, Usage(5, 5))
    assert len(estimator._known) == 10


def test_a_foreign_demand_teaches_nothing() -> None:
    call = a_call()
    call.estimate = TokenEstimate(1, 1, 1)
    Estimator().learn(call, Usage(5, 5))


@pytest.mark.parametrize(
    ("more", "reserved"),
    [
        ({}, 32_000),
        ({"context": 1000}, 997),
        ({"context": 1000, "over_context": "refuse"}, 32_000),
        ({"context": 1000, "larger_context": "l"}, 4997),
        ({"context": 1000, "larger_context": "m"}, 997),
        ({"context": 2}, 1),
    ],
    ids=["no context", "clipped", "refused", "a larger one", "in a circle", "no room"],
)
def test_no_more_is_reserved_than_contexts_leave(more: dict[str, Any], reserved: int) -> None:
    targets = [{"backend": "up", "model": "upstream-model"}]
    rules = policy(
        models={"m": {"targets": targets, **more}, "l": {"targets": targets, "context": 5000}},
    )
    found = estimate(prompt=[5, 6, 7], params={"max_tokens": 32_000}, policy_=rules)
    assert found.reserved == reserved
    twice = estimate(prompt=[[5, 6, 7], [5, 6, 7]], params={"max_tokens": 32_000}, policy_=rules)
    assert twice.reserved == 2 * reserved


def test_thoughts_are_learned_from_what_servers_tell() -> None:
    estimator = Estimator()
    made = a_call()
    made.estimate = estimator.estimate(made)
    assert made.estimate.thoughts == 0
    for _ in range(30):
        estimator.learn(made, Usage(10, 1010, reasoning=1000))
    assert 1000 <= estimator.estimate(made).thoughts < 1100


@pytest.mark.parametrize("tokens", [200_000, 10**8])
@pytest.mark.parametrize("content", ["Hi", SAYING * 30])
def test_what_no_text_can_hold_teaches_nothing_of_texts(tokens: int, content: str) -> None:
    """A caller's hidden parts, and a server's figures that are none, are not charged to others as an estimate."""
    estimator = Estimator()
    for _ in range(9):
        told(estimator, Usage(tokens, 5), messages=({"role": "user", "content": content},))
    other = a_call(messages=({"role": "user", "content": "Hello"},))
    other.principal = replace(other.principal, key_id="another")
    assert estimator.estimate(other).prompt <= 3 * module.MOST_ADDED
