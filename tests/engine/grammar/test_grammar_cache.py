"""Which grammars stay compiled."""

from __future__ import annotations

import pytest
from llguidance import LLTokenizer

from engine.core.sampling_params import Grammar
from engine.grammar.grammar_cache import GrammarCache

BYTES = LLTokenizer("byte")
A, B, C = (Grammar("regex", sign) for sign in "abc")


def test_what_was_asked_for_last_stays() -> None:
    compiled = GrammarCache(max_grammars=2)
    first = compiled.get(A, BYTES)
    compiled.get(B, BYTES)
    assert compiled.get(A, BYTES) is first
    compiled.get(C, BYTES)
    assert [one in compiled for one in (A, B, C)] == [True, False, True]
    assert len(compiled) == 2


def test_the_beginning_of_an_answer_makes_no_other_grammar() -> None:
    compiled = GrammarCache()
    assert compiled.get(A, BYTES) is compiled.get(Grammar("regex", "a", prefix="a"), BYTES)
    assert compiled.get(A, BYTES) is not compiled.get(Grammar("lark", "a"), BYTES)


def test_lexers_that_were_long_at_work_go_as_they_have_grown() -> None:
    compiled = GrammarCache(max_seconds=1.0)
    old, new = compiled.get(A, BYTES), compiled.get(B, BYTES)
    compiled.charge(new, 0.6)
    assert A in compiled and B in compiled
    compiled.charge(old, 0.6)
    assert A not in compiled and B in compiled, "the one that was asked for longest ago goes"
    compiled.charge(new, 0.6)
    assert B not in compiled
    assert compiled.get(B, BYTES) is not new


@pytest.mark.parametrize("newer", [False, True])
def test_one_that_is_full_is_dropped_but_not_its_successor(newer: bool) -> None:
    compiled = GrammarCache()
    full = compiled.get(A, BYTES)
    if newer:
        compiled.drop(A, full)
        compiled.get(A, BYTES)
    compiled.drop(A, full)
    assert (A in compiled) == newer
