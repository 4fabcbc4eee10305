"""Conversations that end alike, and which keys of a cache tell them apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.follow_ups import FOLLOW_UPS, conversations, keys

ROWS = [{"a": f"How is {n}?", "b": f"How is {n} now?", "same": n % 2} for n in range(10)]


def test_each_first_question_comes_again_alike_and_as_another() -> None:
    stored, coming, follow_ups, label = conversations(ROWS, 10)
    assert len(stored) == len(coming) == len(follow_ups) == len(label) == 20
    for first, second, kind in zip(stored, coming, label, strict=True):
        assert (second == first.replace("?", " now?")) == (kind >= 0)
        assert kind < 0 or kind == int(first[7]) % 2
    assert set(follow_ups) <= set(FOLLOW_UPS)


def test_only_the_conversation_tells_equal_follow_ups_apart() -> None:
    asked: list[Sequence[str]] = []

    def judge(stored: Sequence[str], coming: Sequence[str]) -> np.ndarray:
        asked.extend((stored, coming))
        return np.array([a == b for a, b in zip(stored, coming, strict=True)])

    found = keys(["Is tea hot?", "Is ice hot?"], ["Is tea hot?", "Is tea hot?"], ["Why?", "Why?"], judge)
    assert {name: served.tolist() for name, served in found.items()} == {
        "same conversation": [True, False],
        "last question alone": [True, True],
        "joined": [True, False],
        "turn by turn": [True, False],
    }
    assert asked[0] == ["Is tea hot? Why?", "Is ice hot? Why?"]
