"""Pieces of a text that came together leave as they do one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.guards.guards import Guards
from gateway.guards.scanners.factory import build_scanners
from gateway.guards.streaming.guarded_answer import GuardedAnswer
from gateway.observe.metrics import Metrics
from gateway.sidecar.client import NoSidecar
from gateway.types import Chunk
from tests.fakes import a_call, policy

ENVELOPE = {"id": "c"}
LIKE = Chunk(0, {"content": "x"}, envelope=ENVELOPE)
PII = {"checks": ["fast"], "action": "redact", "stream": "windowed", "window": 24, "interval": 8}
GUARDS: dict[str, dict[str, dict[str, Any]]] = {
    "masking": {"pii": {**PII, "action": "mask"}},
    "held": {"pii": {"checks": ["fast"], "action": "redact", "stream": "hold"}},
    "cutting": {"topics": {"words": ["merger"], "action": "block", "stream": "optimistic", "interval": 8}},
    "limited": {"length": {"max_characters": 40, "action": "block"}, "pii": PII},
}
WORDS = st.sampled_from([" a", "ann", "@", "example", ".org", " the", " mer", "ger", " word", "é", "x" * 70])
BUNCHES = st.lists(st.lists(WORDS, min_size=1, max_size=9), max_size=8)


def answer(name: str) -> GuardedAnswer:
    rules = policy(guards={kind: {"on": ["output"], **one} for kind, one in GUARDS[name].items()})
    guards = Guards(rules, build_scanners(rules, NoSidecar(), {}), {})
    answer = GuardedAnswer(
        a_call(stream=True), guards.of("acme").output, Metrics(), lambda *_: None, clock=lambda: 0.0
    )
    answer.feed(Chunk(0, {"role": "assistant", "content": ""}, envelope=ENVELOPE))
    answer.feed(LIKE.with_text("So"))
    return answer


def shown(
    answer: GuardedAnswer,
    bunches: Sequence[Sequence[str]],
    feed: Callable[[GuardedAnswer, Sequence[str]], None],
) -> list[list[Any]]:
    """What leaves after each bunch, and at the end."""
    left = []
    for bunch in bunches:
        feed(answer, bunch)
        answer.look()
        left.append([chunk.delta for chunk in answer.release()])
    answer.feed(Chunk(0, {}, "stop", envelope=ENVELOPE))
    answer.finish()
    answer.look()
    left.append([(chunk.delta, chunk.finish_reason) for chunk in answer.release()])
    left.append([(chunk.delta, chunk.finish_reason) for chunk in answer.final_chunks()])
    return left


def one_by_one(answer: GuardedAnswer, bunch: Sequence[str]) -> None:
    for text in bunch:
        answer.feed(Chunk(0, {"content": text}, envelope=ENVELOPE))


def together(answer: GuardedAnswer, bunch: Sequence[str]) -> None:
    answer.feed_pieces(LIKE, bunch)


@pytest.mark.parametrize("name", GUARDS)
@given(BUNCHES)
def test_they_leave_as_they_do_one_by_one(name: str, bunches: list[list[str]]) -> None:
    assert shown(answer(name), bunches, together) == shown(answer(name), bunches, one_by_one)


@given(BUNCHES)
def test_those_that_a_client_takes_in_one_go_are_the_same(bunches: list[list[str]]) -> None:
    once, often = answer("masking"), answer("masking")
    for bunch in bunches:
        together(once, bunch)
        one_by_one(often, bunch)
        once.look()
        often.look()
        leaving = once.leaving()
        pieces = once.released_texts(leaving) if leaving else None
        if pieces is not None:
            like, texts = pieces
            chunks = [like.with_text(text) for text in texts]
        else:
            chunks = [*once.released(leaving)]
        assert [chunk.delta for chunk in chunks] == [chunk.delta for chunk in often.release()]
