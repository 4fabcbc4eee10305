"""One request in its grammar: what it may take, and what happens when a lexer that it shares is full."""

from __future__ import annotations

import json
import random
import string

import numpy as np
import pytest
from llguidance import LLParserLimits, LLTokenizer

from engine.core.sampling_params import Grammar
from engine.grammar import grammar_cache
from engine.grammar.grammar_cache import GrammarCache
from engine.grammar.matcher import GrammarMatcher

BYTES = LLTokenizer("byte")
LONG = Grammar("json_schema", json.dumps({"type": "string", "maxLength": 10_000}))
AMBIGUOUS = Grammar("lark", 'start: a\na: a a a | a a | "~"')


class Clock:
    """Moves by ``step`` each time that it is looked at."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def ids(text: str) -> list[int]:
    return BYTES.tokenize_str(text)


def write(matcher: GrammarMatcher, text: str, *, every: int = 1) -> int:
    """Follows the text, and gives how many of its tokens could be said."""
    bits = np.full((1, -(-BYTES.vocab_size // 32)), -1, dtype=np.int32)
    answer = ids(text)
    for length in range(0, len(answer), every):
        matcher.advance(answer[:length], BYTES)
        if matcher.exhausted:
            matcher.restart(answer[:length], BYTES)
        if matcher.failed is not None:
            return length
        matcher.fill(bits, [])
        received = int(bits[0, answer[length] // 32]) >> (answer[length] % 32) & 1
        assert received or matcher.exhausted or matcher.failed
    matcher.advance(answer, BYTES)
    return len(answer)


def letters(seed: int, count: int) -> str:
    return '"' + "".join(random.Random(seed).choices(string.ascii_letters, k=count)) + '"'


def test_the_longest_answers_do_not_fill_the_lexer_that_they_share() -> None:
    compiled = GrammarCache()
    for seed in range(4):
        matcher = GrammarMatcher(LONG, compiled, clock=Clock(0.0))
        assert write(matcher, letters(seed, 9_990), every=7) == 9_992
        assert matcher.failed is None


SPREAD = Grammar("regex", "(a|b)*a(a|b){12}")
"""Its lexer has a state for any thirteen letters before."""


def signs(seed: int, count: int = 150) -> str:
    return "".join(random.Random(seed).choices("ab", k=count))


@pytest.fixture
def few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lexers with room for a few answers."""
    monkeypatch.setattr(
        grammar_cache, "limits", lambda kind: LLParserLimits(max_lexer_states=1000, verbose_errors=False)
    )


@pytest.mark.usefixtures("few_states")
def test_a_lexer_that_others_have_filled_fails_nobody() -> None:
    compiled = GrammarCache()
    lexers = {}
    for seed in range(200):
        matcher = GrammarMatcher(SPREAD, compiled, clock=Clock(0.0))
        lexer = compiled.get(SPREAD, BYTES)
        lexers[id(lexer)] = lexer  # kept, so that no other gets its id
        assert write(matcher, signs(seed, 60), every=2) == 60
        assert matcher.failed is None
    assert len(lexers) > 1, "no lexer was ever full: this tests nothing"


@pytest.mark.usefixtures("few_states")
def test_who_fills_one_alone_fails_and_leaves_no_trace() -> None:
    compiled = GrammarCache()
    greedy = GrammarMatcher(SPREAD, compiled, clock=Clock(0.0))
    assert write(greedy, signs(1, 5000)) < 5000
    assert greedy.failed is not None and "too many states" in greedy.failed
    modest = GrammarMatcher(SPREAD, compiled, clock=Clock(0.0))
    assert write(modest, signs(2)) == 150
    assert modest.failed is None


@pytest.mark.usefixtures("few_states")
def test_all_who_run_into_it_at_once_go_on() -> None:
    compiled = GrammarCache()
    texts = [signs(seed) for seed in range(10)]
    matchers = [GrammarMatcher(SPREAD, compiled, clock=Clock(0.0)) for _ in texts]
    bits = np.full((1, -(-BYTES.vocab_size // 32)), -1, dtype=np.int32)
    met = 0
    for length in range(150):
        for matcher, text in zip(matchers, texts, strict=True):
            answer = ids(text)[:length]
            matcher.advance(answer, BYTES)
            matcher.fill(bits, [])
            if matcher.exhausted:
                met += 1
                matcher.restart(answer, BYTES)
            assert matcher.failed is None
    assert met == 10


def test_a_grammar_that_takes_too_long_fails() -> None:
    matcher = GrammarMatcher(AMBIGUOUS, GrammarCache(), clock=Clock(0.01))
    received = write(matcher, "~" * 90)
    # A quarter of a second ahead, a millisecond a token, and twice ten for each.
    assert 10 < received < 20
    assert matcher.failed is not None and "1 ms a token" in matcher.failed


def test_one_that_takes_its_time_once_does_not() -> None:
    clock = Clock(0.0)
    matcher = GrammarMatcher(AMBIGUOUS, GrammarCache(), clock=clock)
    bits = np.full((1, -(-BYTES.vocab_size // 32)), -1, dtype=np.int32)
    for length in range(30):
        clock.step = 0.1 if length == 10 else 0.0
        matcher.advance(ids("~" * length), BYTES)
        matcher.fill(bits, [])
        assert matcher.slow == (length == 10), "then its next mask is nobody else's business"
    assert matcher.failed is None


def test_what_an_ambiguous_grammar_may_have_open_is_bounded() -> None:
    matcher = GrammarMatcher(AMBIGUOUS, GrammarCache(), clock=Clock(0.0))
    received = write(matcher, "~" * 300)
    assert 50 < received < 150, "its work grows with the cube of what is open"
    assert matcher.failed is not None and "max is 500" in matcher.failed


def test_wide_objects_are_no_ambiguity() -> None:
    schema = {"properties": {f"p{i}": {"type": "integer"} for i in range(300)}, "additionalProperties": False}
    matcher = GrammarMatcher(Grammar("json_schema", json.dumps({"type": "object", **schema})), GrammarCache())
    assert write(matcher, '{"p3": 4, "p8": 1}') == 18
    assert matcher.failed is None


def test_drafts_are_tried_and_taken_back() -> None:
    matcher = GrammarMatcher(Grammar("regex", "abc"), GrammarCache(), clock=Clock(0.0))
    matcher.advance([], BYTES)
    bits = np.full((4, -(-BYTES.vocab_size // 32)), -1, dtype=np.int32)
    matcher.fill(bits, ids("abx"))
    allowed = [{i for i in range(256) if int(row[i // 32]) >> (i % 32) & 1} for row in bits]
    assert allowed[:3] == [{ord("a")}, {ord("b")}, {ord("c")}]
    assert (bits[3] == -1).all(), "nobody will want what stands behind a draft that is wrong"
    matcher.advance(ids("ab"), BYTES)
    matcher.fill(bits[:1], [])
    assert {i for i in range(256) if int(bits[0, i // 32]) >> (i % 32) & 1} == {ord("c")}
