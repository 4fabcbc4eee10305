"""Data sets of one JSON document a line are read as such, whatever their texts hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

# What str.splitlines takes for the end of a line, and JSON does not.
TEXT = "one\u2028two\u2029three\u0085four"


def written(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_questions_of_a_cascade(tmp_path: Path) -> None:
    from training.complexity import Rows

    row = {"text": TEXT, "task": "qa", "small_correct": False, "large_correct": True}
    rows = Rows.read(written(tmp_path / "routing.jsonl", row, {**row, "text": "plain"}))
    assert rows.texts == [TEXT, "plain"]
    assert rows.lost.tolist() == [True, True]


def test_pairs_of_the_semantic_cache(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    from benchmarks.semantic import read

    row = {"a": TEXT, "b": "plain", "same": 1}
    assert read(written(tmp_path / "question_pairs.jsonl", row, row)) == [row, row]


def test_pairs_that_the_verifier_learns_from(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    pytest.importorskip("sklearn")
    from training.verifier import load

    written(tmp_path / "question_pairs.jsonl", {"a": TEXT, "b": "plain", "same": 1})
    np.savez(tmp_path / "embeddings.npz", mean6=np.ones((2, 4), dtype=np.float32))
    pairs = load(tmp_path, tmp_path / "embeddings.npz")
    assert (pairs.asked, pairs.stored) == ([TEXT], ["plain"])
