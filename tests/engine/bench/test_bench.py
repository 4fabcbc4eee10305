"""``python -m engine bench`` on tiny shapes and this CPU: every row, what is kept, and what a fault costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.bench import run as running
from engine.bench.child import ChildEnded
from engine.bench.rows import Row, cells, markdown, measure
from engine.bench.run import Bench, Options, groups
from kernels.bench.journal import Journal

ROOT = Path(__file__).parents[3]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine", "bench", "--device", "cpu", "--dry-run", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


def test_a_dry_run_measures_every_row(tmp_path: Path) -> None:
    file, table = tmp_path / "bench.json", tmp_path / "bench.md"
    arguments = ["--models", "qwen3-0.6b", "--rivals", "none", "--variants", "none"]
    arguments += ["--json", str(file), "--markdown", str(table), "--folder", str(tmp_path / "weights")]
    done = bench(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [Row(**row) for row in json.loads(file.read_text())["rows"]]
    assert [(row.model, row.way, row.batch) for row in rows] == [
        ("qwen3-0.6b", "engine", 1),
        ("qwen3-0.6b", "engine", 3),
    ]
    for row in rows:
        assert not row.fault and row.tokens_per_second and row.first_tokens and row.ttft and row.itl
        assert row.of_limit and row.itl[0] <= row.itl[1]
    assert table.read_text().count("| qwen3-0.6b | engine |") == 2


class Fake:
    """A child that takes a second a token of each answer and dies, or says that it cannot, for some batches."""

    started: list[list[str]]
    dies: int
    refuses: int

    def __init__(self, *command: str, limit: float) -> None:
        self.started.append(list(command))

    def ask(self, limit: float, **question: Any) -> Any:
        if question["do"] == "bandwidth":
            return 1e9
        batch = len(question["prompts"])
        if batch == self.dies:
            raise ChildEnded("a process has ended")
        if batch == self.refuses:
            return {"error": "OutOfMemoryError: too much"}
        return {"seconds": float(question["tokens"]), "times": [[1.0, 2.0]] * batch}

    def close(self) -> None: ...

    def kill(self) -> None: ...


def test_a_fault_costs_one_row_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "Child", Fake)
    Fake.started, Fake.dies, Fake.refuses = [], 2, 3
    options = Options(
        tmp_path, "cpu", ["qwen3-0.6b"], (1, 2, 3, 4), answer=5, rivals=(), variants=(), tiny=True
    )

    def go() -> dict[int, Row]:
        told: dict[int, Row] = {}
        journal = Journal(tmp_path / "rows.json", {})
        Bench(options, journal, lambda row: told.__setitem__(row.batch, row)).run()
        return told

    rows = go()
    assert [bool(row.fault) for _, row in sorted(rows.items())] == [False, True, True, False]
    assert "a process has ended" in rows[2].fault and "too much" in rows[3].fault
    # 4 answers of 5 tokens in 5 s; the first ones took 1 s.
    assert rows[4].tokens_per_second == 4.0 and rows[4].first_tokens == 1.0 and rows[4].per_token == 1.0
    assert len(Fake.started) == 3
    Fake.dies = 0
    assert sorted(go()) == [2, 3]


def test_no_row_begins_when_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "Child", Fake)
    Fake.started = []
    told: list[Row] = []
    options = Options(tmp_path, "cpu", rivals=(), deadline=0.0)
    Bench(options, Journal(None, {}), told.append).run()
    assert not told and not Fake.started


def test_the_engine_comes_first_and_others_that_are_installed_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "vllm" else None)
    found = groups(Options(tmp_path, models=["a", "b"], variants=("eager", "int4")))
    assert [(group.model, group.way) for group in found] == [
        *[("a", "engine"), ("b", "engine"), ("a", "vllm"), ("b", "vllm")],
        *[("a", "engine, eager"), ("b", "engine, eager"), ("a", "engine, int4"), ("b", "engine, int4")],
    ]
    assert found[4].changes == {"cuda_graphs": False} and found[6].changes == {"quantization": "int4"}
    assert found[0].batches == (1, 8, 64, 256) and list(found[4].batches) == [1, 8]


def test_rows_stand_beside_others() -> None:
    times = {"seconds": 4.0, "times": [[1.0, 1.5, 3.5], [1.0, 2.0, 4.0]]}
    ours = measure({"model": "m", "way": "engine", "batch": 2}, 2, 3, 1.0, times)
    assert ours == Row("m", "engine", 2, 1.5, 1.0, 1.5, (1.0, 1.0), (1.5, 2.0))
    theirs = measure({"model": "m", "way": "vllm", "batch": 2}, 2, 3, 1.0, {"seconds": 8.0})
    assert theirs.itl is None
    # Shorter than the run of one token, as tiny ones may be: nothing is told.
    assert measure({"model": "m", "way": "vllm", "batch": 2}, 2, 3, 1.0, {"seconds": 0.9}).per_token is None
    assert cells(ours, [ours, theirs])[4] == "2.00 vllm"
    assert cells(theirs, [ours, theirs])[4] == ""
    assert "| m | engine | 9 | it broke |" in markdown([Row("m", "engine", 9, fault="it broke")], "about")
