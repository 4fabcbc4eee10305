"""Draft tokens from grammars: they are what is forced or usual, and change no answer."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from engine.core.plan import SamplerOutput
from engine.core.sampling_params import Grammar, SamplingParams
from engine.grammar import forecast
from engine.grammar.forecast import Forecast, Habits
from engine.grammar.grammar_cache import matcher_of
from engine.worker.runner import Runner
from tests.engine.core.test_scheduler import BLOCK, make, request
from tests.engine.steps import run
from tests.engine.tiny import make_tokenizer
from tests.examples import examples

SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "boolean"} for name in ("first_name", "second_name", "third_name")},
    "required": ["first_name", "second_name", "third_name"],
    "additionalProperties": False,
}
FORM = Grammar("json_schema", json.dumps(SCHEMA))
ANSWER = '{"first_name": true, "second_name": false, "third_name": true}'
EOS = 1


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.fixture(scope="module")
def guidance(tokenizer: Tokenizer) -> LLTokenizer:
    return LLTokenizer(tokenizer.to_str(), eos_token=EOS)


def steps(matcher: LLMatcher, ids: list[int], guidance: LLTokenizer, habits: Habits, limit: int = 4) -> int:
    """In which a model that answers ``ids`` would, token by token or as proposed."""
    one, at, count = Forecast(), 1, 1
    matcher.consume_tokens(ids[:1])
    while at < len(ids):
        before = matcher.compute_bitmask()
        drafts = one.propose(matcher.deep_copy(), ids[:at], limit, guidance, habits)
        assert len(drafts) <= limit
        assert matcher.validate_tokens(drafts) == len(drafts)
        assert matcher.compute_bitmask() == before
        right = next(
            (i for i, pair in enumerate(zip(drafts, ids[at:], strict=False)) if pair[0] != pair[1]),
            len(drafts),
        )
        taken = min(right + 1, len(ids) - at)
        matcher.consume_tokens(ids[at : at + taken])
        assert not matcher.is_error()
        at, count = at + taken, count + 1
    return count


def test_what_is_forced_is_proposed_and_what_is_usual_is_learnt(
    tokenizer: Tokenizer, guidance: LLTokenizer
) -> None:
    ids, habits = tokenizer.encode(ANSWER).ids, Habits()
    first = steps(matcher_of(FORM, guidance), ids, guidance, habits)
    again = steps(matcher_of(FORM, guidance), ids, guidance, habits)
    assert again <= first < len(ids) * 0.6
    # In another layout habits are of no use, and do no harm.
    spaced = tokenizer.encode(json.dumps(json.loads(ANSWER), indent=1)).ids
    assert steps(matcher_of(FORM, guidance), spaced, guidance, habits) < len(spaced) * 0.7


def test_texts_have_no_habits(tokenizer: Tokenizer, guidance: LLTokenizer) -> None:
    schema = {"type": "array", "items": {"type": "string"}}
    ids, habits = tokenizer.encode('["abcabcabc", "abcabcabc"]').ids, Habits()
    steps(matcher_of(Grammar("json_schema", json.dumps(schema)), guidance), ids, guidance, habits)
    learnt = {token for tokens in habits._after.values() for token in tokens}
    assert all(set(guidance.decode_bytes([token])) <= set(b'[]", \n') for token in learnt)


def test_habits_are_few_and_the_latest_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "_MAX_HABITS", 2)
    habits = Habits()
    for token in (1, 2, 3, 4, 2):
        habits.learn((b"", 7), token)
    assert habits.after((b"", 7)) == [2, 4, 3]
    habits.learn((b"x", -1), 1)
    habits.learn((b"y", -1), 1)
    assert habits.after((b"", 7)) == ()


def params(**changes: object) -> SamplingParams:
    defaults = {"max_tokens": 120, "temperature": 0.0, "grammar": FORM, "stop_token_ids": frozenset({EOS})}
    return SamplingParams(**{**defaults, **changes})


@settings(max_examples=examples(6), deadline=None, derandomize=True)
@given(st.data())
def test_answers_are_the_same_to_the_token(tiny_runner: Runner, data: st.DataObject) -> None:
    """With requests that have no grammar beside them, chunked, late, and short of blocks."""
    seeds = data.draw(st.lists(st.integers(0, 2**20), min_size=2, max_size=6))
    requests = [
        (
            [2 + seed % 50] * (1 + seed % 30),
            params(
                temperature=float(seed % 2),
                seed=seed,
                grammar=(FORM, Grammar("regex", "(ab|cd) and so on, to the end"), None)[seed % 3],
                max_tokens=20 + seed % 100,
                presence_penalty=float(seed % 5 == 0),
            ),
        )
        for seed in seeds
    ]
    options = {"late": data.draw(st.integers(0, 3)), "budget": data.draw(st.sampled_from([16, 512]))}
    if data.draw(st.booleans()):
        options |= {"blocks": 30, "sequences": 8}
    plain = run(tiny_runner, requests, **{**options, "budget": max(options["budget"], 64)})
    assert (
        run(tiny_runner, requests, forecasts=4, **{**options, "budget": max(options["budget"], 64)}).tokens
        == plain.tokens
    )


def test_a_forced_text_takes_fewer_steps(tiny_runner: Runner, tokenizer: Tokenizer) -> None:
    text = "-" * 40
    forced = params(grammar=Grammar("regex", text.replace("-", r"\-")))
    plain = run(tiny_runner, [([5] * 9, forced), ([6], replace(forced, seed=3, temperature=1.0))])
    jumped = run(
        tiny_runner, [([5] * 9, forced), ([6], replace(forced, seed=3, temperature=1.0))], forecasts=4
    )
    assert jumped.tokens == plain.tokens
    assert tokenizer.decode(plain.tokens[0][:-1]) == text
    assert jumped.steps < plain.steps


def test_blocks_are_kept_for_no_drafts_that_may_never_come() -> None:
    scheduler = make(max_drafts=4, budget=32, reserve_drafts=False)
    scheduler.submit(request(1, BLOCK, generate=20))
    plan = scheduler.schedule()
    (scheduled,) = plan.requests
    assert (len(scheduled.blocks), scheduled.lookahead) == (1, 4)
    scheduler.update(plan, SamplerOutput({1: [7]}, draft_tokens={1: [1, 2]}))
    (scheduled,) = scheduler.schedule().requests
    assert (scheduled.num_draft_tokens, scheduled.lookahead) == (2, 4)
    assert len(scheduled.blocks) == 2
    scheduler.check_integrity()
