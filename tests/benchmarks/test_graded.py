"""The graded requests, and what they say about the cascade's score."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")

from benchmarks.graded import GRADED, Graded, interval, rank_correlation, tables


def row(text: str, level: int, language: str = "en") -> str:
    return json.dumps({"text": text, "level": level, "kind": "chat", "language": language}) + "\n"


def test_each_level_is_graded_as_often_and_no_request_twice() -> None:
    graded = Graded.read()
    assert np.unique(graded.levels, return_counts=True)[1].tolist() == [40] * 5
    assert len(set(graded.texts)) == len(graded.texts) == 2 * graded.odd.sum()


def test_the_first_line_is_odd(tmp_path: Path) -> None:
    path = tmp_path / "graded.jsonl"
    path.write_text(row("one\u2028line", 1) + row("two", 2) + row("three", 3), encoding="utf-8")
    graded = Graded.read(path)
    assert graded.texts == ["one\u2028line", "two", "three"]
    assert graded.odd.tolist() == [True, False, True]


def test_ties_share_their_rank() -> None:
    assert rank_correlation(np.array([1, 1, 2, 2]), np.array([1, 2, 3, 4])) == pytest.approx(0.894, abs=1e-3)
    assert interval(np.arange(30), np.arange(30)) == pytest.approx((1, 1))


def test_the_score_agrees_with_the_grading_better_than_length_does() -> None:
    graded = Graded.read(GRADED)
    scores = graded.scores()
    ours, length = (
        rank_correlation(scores[name][graded.odd], graded.levels[graded.odd])
        for name in ("as the gateway scores", "length alone")
    )
    assert ours > 0.4 > length


def test_the_table_has_every_language_and_kind(tmp_path: Path) -> None:
    text = tables(Graded.read())
    assert all(f" {language} (" in text for language in ("de", "en", "es", "fr", "zh"))
    assert all(f"| {kind} |" in text for kind in ("translation", "maths", "agent"))
