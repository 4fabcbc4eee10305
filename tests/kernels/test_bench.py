"""The script for GPUs, tried without one: its checks and its table, and all its cases at tiny shapes."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.__main__ import main
from kernels.bench import pool, table
from kernels.bench import run as running
from kernels.bench.case import Case, Rival, check, poisoned, size, tensors
from kernels.bench.cases import all_cases
from kernels.bench.journal import Journal, fingerprint
from kernels.bench.run import Options, Result, run
from kernels.bench.timing import seconds
from kernels.report import operations
from tests.sampling import slow

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernels", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def main_here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The command in this process, whose environment it changes."""
    for name in ("TRITON_INTERPRET", "TOLLGATE_KERNELS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(sys, "argv", ["kernels", "bench", *arguments])
    return main()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("only", [["rms_norm", "linear_w8a16"], *slow([])], ids=["two operations", "all"])
def test_a_dry_run_makes_runs_and_checks_every_case(
    only: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton", reason="triton is installed on Linux alone")
    json_file, markdown_file = tmp_path / "bench.json", tmp_path / "bench.md"
    arguments = ["--dry-run", "--checks", "1", "--seconds", "500", "--json", str(json_file)]
    arguments += ["--only", *only] if only else []
    done = bench(*arguments, "--markdown", str(markdown_file))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(json_file.read_text())["results"]
    cases = [case for case in all_cases(True) if not only or case.op in ("ceiling", *only)]
    assert [(result["op"], result["name"]) for result in results] == [(case.op, case.name) for case in cases]
    assert not any(result["fault"] or result["skipped"] or result["seconds"] for result in results)
    checked = sum(case.reference is not None for case in cases)
    assert checked >= len(only)
    assert f"{checked} of {checked} checks against the references passed." in done.stdout
    assert f"| {cases[-1].op} |" in markdown_file.read_text()
    # All is there: the same again begins nothing, and tells the same.
    assert main_here(monkeypatch, *arguments) == 0
    again = capsys.readouterr().out
    assert f"{len(results)} steps are done" in again
    assert f"{checked} of {checked} checks against the references passed." in again


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_here(monkeypatch) == 2
    missing = capsys.readouterr().err
    assert "no GPU is visible" in missing or "is built for CPUs alone" in missing


def test_every_kernel_has_cases_of_both_sizes() -> None:
    for tiny in (False, True):
        cases = all_cases(tiny)
        assert len({(case.op, case.name) for case in cases}) == len(cases)
        ceilings = {case.name for case in cases if case.op == "ceiling"}
        for case in cases:
            assert tiny or not case.timed or case.op == "ceiling" or case.ceiling in ceilings, case.name
            assert case.op == "ceiling" or case.reference is not None, case.name
            assert not (case.bytes and case.flops)
            assert case.target is None or (case.timed and 0 < case.target < 1)
        assert set(operations()) - PARTS <= {case.op for case in cases}


PARTS = {"flash_decoding", "flash_prefill", "kv_splits", "route"}
"""Kernels of operations whose cases have another name."""


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def case(**changes: object) -> Case:
    values = {"op": "op", "name": "name", "make": lambda device: (torch.randn(9),), "run": double}
    return Case(**(values | {"reference": lambda x: x.double() * 2} | changes))


def test_what_is_right_passes() -> None:
    assert check(case(), CPU) == (pytest.approx(0, abs=1e-6), "")


@pytest.mark.parametrize(
    ("run_case", "fault"),
    [
        (
            lambda x: double(x).index_fill(0, torch.tensor([4]), 99.0),
            r"1 of 9 numbers are off .* most at \(4,\): 99 for",
        ),
        (lambda x: torch.empty(9), "9 of 9 numbers are off"),
        (lambda x: double(x)[:8], r"its shape is \(8,\) and should be \(9,\)"),
        (lambda x: double(x).index_fill(0, torch.tensor([0]), math.inf), "1 of 9 numbers are off"),
    ],
)
def test_what_is_wrong_does_not(run_case: object, fault: str) -> None:
    worst, found = check(case(run=run_case), CPU)
    assert worst > 0
    assert re.search(fault, found)


def test_infinities_hide_nothing() -> None:
    ends = torch.tensor([-math.inf, 1.0, 1.0])
    made = {"make": lambda device: (ends,), "reference": torch.Tensor.double}
    assert check(case(**made, run=torch.clone), CPU) == (0.0, "")
    assert check(case(**made, run=lambda x: torch.tensor([-math.inf, 1.0, 1.1])), CPU)[1]
    assert check(case(**made, run=lambda x: torch.tensor([-3e38, 1.0, 1.0])), CPU)[1]


def test_integers_are_equal_or_wrong() -> None:
    made = {"make": lambda device: (torch.arange(5),), "reference": lambda x: x + 1}
    assert check(case(**made, run=lambda x: x + 1), CPU) == (0.0, "")
    assert check(case(**made, run=lambda x: x), CPU) == (1.0, "5 of 5 numbers differ")


def test_several_results_are_told_apart() -> None:
    made = {"reference": lambda x: (x, x)}
    assert check(case(**made, run=lambda x: (x, x + 1)), CPU)[1].startswith("result 1: ")


def test_memory_is_poisoned_meanwhile_alone() -> None:
    before = torch.empty, torch.empty_like, torch.Tensor.new_empty
    with poisoned():
        assert torch.empty(2).isnan().all() and torch.empty_like(torch.ones(2)).isnan().all()
        assert torch.ones(1).new_empty(3, dtype=torch.int8).tolist() == [127] * 3
        assert torch.empty(2, dtype=torch.float8_e4m3fn).float().isnan().all()
    assert (torch.empty, torch.empty_like, torch.Tensor.new_empty) == before


def test_tensors_are_found_in_whatever_holds_them() -> None:
    one = torch.ones(3)
    held = (one, None, [one], {"a": one}, 5)
    assert len(list(tensors(held))) == 3 and size(held) == 36


def test_a_table_has_rates_shares_and_targets() -> None:
    cases = [
        Case("ceiling", "device copy", lambda device: (), double, bytes=1000),
        case(name="fast", bytes=900, ceiling="device copy", target=0.85),
        case(name="slow", bytes=500, ceiling="device copy", target=0.85),
        case(name="lost", flops=500, ceiling="cuDNN", target=0.75),
        case(name="unchecked"),
    ]
    results = [
        Result("ceiling", "device copy", seconds=1e-6),
        Result("op", "fast", 1e-3, checks=50, seconds=1e-6, rivals={"torch": 1.5e-6}),
        Result(
            "op", "slow", 1e-3, "wrong", checks=3, seconds=1e-6, graph=False, absent={"vLLM": "no module"}
        ),
        Result("op", "lost", skipped=True),
        Result("op", "unchecked", 1e-3, checks=50),
    ]
    assert table.rows(cases, results) == [
        ("ceiling", "device copy", "-", "1.0 µs", "1 GB/s", "-", "", "", "-", ""),
        ("op", "fast", "50", "1.0 µs", "0.9 GB/s", "90.0%", "85% met", "device copy", "-", "1.50 torch"),
        (
            "op",
            "slow",
            "wrong",
            "1.0 µs (no graph)",
            "0.5 GB/s",
            "50.0%",
            "85% missed",
            "device copy",
            "-",
            "",
        ),
        ("op", "lost", "-", "-", "-", "-", "75%", "cuDNN", "-", ""),
    ]
    # 900 bytes in a microsecond, of 3.35 TB/s.
    assert table.rows(cases, results, "NVIDIA H100 80GB HBM3")[1][8] == "0.0%"
    assert (
        table.rows([case(bytes=3350, ceiling="none")], [Result("op", "name", 0.0, seconds=2e-9)], "H100")[0][
            8
        ]
        == "50.0%"
    )
    assert table.summary(cases, results) == [
        "2 of 3 checks against the references passed.",
        "FAULT op slow: wrong",
        "Not compared with vLLM: no module",
        "Skipped, no time left: 1 cases of op.",
    ]


class Event:
    """What the device has done so far, and then is told as milliseconds."""

    def __init__(self, enable_timing: bool) -> None:
        self.at = 0

    def record(self) -> None:
        self.at = Graph.runs

    def elapsed_time(self, other: Event) -> float:
        return float(other.at - self.at)


class Graph:
    runs = 0

    def replay(self) -> None:
        Graph.runs += 8


@pytest.mark.parametrize("records", [True, False])
def test_the_time_is_that_of_one_run_over_inputs_past_the_cache(
    records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a device of whose time one millisecond goes by in each run."""

    @contextmanager
    def recording(graph: Graph) -> Iterator[None]:
        before = Graph.runs
        yield
        if not records:
            raise RuntimeError("operation not permitted when stream is capturing")
        graph.recorded, Graph.runs = Graph.runs - before, before

    def run_case(x: torch.Tensor) -> None:
        Graph.runs += 1
        seen.add(x.data_ptr())

    seen: set[int] = set()
    fakes = {
        "get_device_properties": lambda device: SimpleNamespace(L2_cache_size=40),
        "synchronize": lambda device=None: None,
        "CUDAGraph": Graph,
        "graph": recording,
        "Event": Event,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    # 36 bytes of inputs: four copies are three times 40 or more. A recording goes round over them twice.
    assert seconds(case(run=run_case), CPU) == (pytest.approx(1e-3), records)
    assert len(seen) == 4


def _raise(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("of its own")


def _die(x: torch.Tensor) -> torch.Tensor:
    os._exit(1)


def _hang(x: torch.Tensor) -> torch.Tensor:
    time.sleep(600)
    return x


def failing_cases(tiny: bool) -> list[Case]:
    runs = (double, _raise, double, _hang, _die, double)
    return [case(name=f"{number} {run.__name__}", run=run) for number, run in enumerate(runs)]


def test_what_fails_costs_one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises, ends its process, or never ends; what comes before, between and after is told."""
    monkeypatch.setattr(pool, "LIMIT", 5.0)
    told: list[str] = []
    options = Options(True, checks=1)
    results = run(failing_cases, range(6), options, lambda case, result: told.append(result.name))
    faults = [result.fault for result in results]
    assert faults[:3] == ["", "ValueError: of its own", ""]
    assert faults[3:] == ["check: not done in time, and ended", "check: its process ended", ""]
    assert told == [case.name for case in failing_cases(True)] == [result.name for result in results]


def test_no_case_begins_after_the_deadline() -> None:
    results = run(failing_cases, [0, 4], Options(True, deadline=time.time() - 1), lambda case, result: None)
    assert all(result.skipped and not result.fault for result in results)


def test_a_race_is_seen() -> None:
    """Numbers that are right, and not the same ones twice."""
    runs = iter([1.0, 1.0 + 1e-6])
    unsteady = case(run=lambda x: double(x) * next(runs))
    assert check(unsteady, CPU)[1] == "two runs on the same inputs differ: a race"


def inputs_of(numbers: list[int]) -> Case:
    def make(device: torch.device) -> tuple[torch.Tensor]:
        x = torch.randn(9)
        numbers.append(int(x[0] * 1e6))
        return (x,)

    return case(make=make)


def test_a_case_is_checked_with_fresh_inputs_each_time() -> None:
    seen: list[int] = []
    result = running._checked(inputs_of(seen), CPU, Options(True, checks=7), Result("op", "name"))
    assert result.checks == len(set(seen)) == 7
    late = replace(inputs_of(seen), run=lambda x: x if len(seen) > 10 else double(x))
    found = running._checked(late, CPU, Options(True, checks=7), Result("op", "name"))
    assert found.checks == 4 and found.fault.startswith("inputs 4: ")
    hasty = Options(True, checks=7, patience=0.0)
    assert running._checked(case(), CPU, hasty, Result("op", "name")).checks == 1


def test_a_rival_that_computes_something_else_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(x: torch.Tensor) -> tuple[torch.Tensor]:
        raise ModuleNotFoundError("No module named 'vllm'")

    rivals = (
        Rival("right", lambda x: (x,), double),
        Rival("wrong", lambda x: (x,), torch.clone),
        Rival("absent", absent, double),
    )
    monkeypatch.setattr(running, "seconds", lambda case, device, effort: (2.0, True))
    found = running._measured(case(rivals=rivals), CPU, 1.0, Result("op", "name"))
    assert found.rivals == {"right": 2.0} and found.seconds == 2.0
    assert "computes something else" in found.absent["wrong"]
    # On a CPU, where rivals are tried without timing, one that is not installed is no fault.
    tried = running._checked(case(rivals=rivals), CPU, Options(True, checks=1), Result("op", "name"))
    assert "wrong computes something else" in tried.fault and "absent" not in tried.fault


class Here:
    """A pool that does its tasks in this process."""

    def __init__(self, work: Any, arguments: Any, jobs: int, deadline: float, begin: Any, take: Any) -> None:
        self._work, self._arguments, self._begin, self._take = work, arguments, begin, take

    def run(self, tasks: list[Any]) -> None:
        for task in tasks:
            self._begin(task)
            self._take(task, self._work(*self._arguments, task)[0])


def counting_cases(tiny: bool) -> list[Case]:
    return [case(name="first"), case(name="second")]


def test_a_run_goes_on_where_the_last_one_broke_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "Pool", Here)
    file, about = tmp_path / "results.json", {"chip": "one"}
    told: list[str] = []
    options = Options(True, checks=1)

    def go(numbers: list[int], holds: dict[str, str]) -> list[Result]:
        told.clear()
        journal = Journal(file, holds, render=lambda: {"results": "for people"})
        return run(counting_cases, numbers, options, lambda case, result: told.append(result.name), journal)

    go([0], about)
    assert told == ["first"] and json.loads(file.read_text())["results"] == "for people"
    results = go([0, 1], about)
    assert told == ["second"] and [result.checks for result in results] == [1, 1]
    # Another chip's results, and half a file, are of no use.
    go([0, 1], {"chip": "two"})
    assert sorted(told) == ["first", "second"]
    file.write_text(file.read_text()[:99])
    go([0, 1], about)
    assert sorted(told) == ["first", "second"]


def test_what_a_run_did_not_come_back_from_has_its_turn_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "Pool", Here)
    file = tmp_path / "results.json"
    Journal(file, {}).begin("op", "first", "check")
    told: list[str] = []
    run(
        counting_cases,
        [0, 1],
        Options(True, checks=1),
        lambda case, result: told.append(result.name),
        Journal(file, {}),
    )
    assert told == ["second", "first"]


def test_results_hold_for_the_code_that_made_them(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one")
    before = fingerprint(tmp_path)
    assert fingerprint(tmp_path) == before
    (tmp_path / "a.py").write_text("two")
    assert fingerprint(tmp_path) != before
