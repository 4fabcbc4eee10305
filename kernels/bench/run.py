"""Checks cases in several processes at once, which is also how kernels are compiled, then times them one by one."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernels.bench.case import Case, Rival, check, compare
from kernels.bench.journal import Journal
from kernels.bench.pool import Lost, Pool
from kernels.bench.timing import seconds

SHARE = 10 << 30
"""GPU memory in bytes that a process needs for the largest case, its copies and its reference."""


@dataclass(frozen=True, slots=True)
class Result:
    op: str
    name: str
    error: float | None = None
    """The largest error, as of ``check``; ``None`` if nothing was computed."""
    fault: str = ""
    """What was wrong with the results, or the exception."""
    checks: int = 0
    """Number of fresh inputs that were checked, up to the first wrong one."""
    seconds: float | None = None
    """Of one run; ``None`` if it was not timed."""
    graph: bool = True
    """Whether runs were recorded as a CUDA graph; otherwise ``seconds`` includes the cost of launches."""
    rivals: dict[str, float] = field(default_factory=dict)
    """Seconds of rivals, by name."""
    absent: dict[str, str] = field(default_factory=dict)
    """Rivals that were not timed, and why."""
    skipped: bool = False
    """Whether it was skipped for lack of time."""


@dataclass(frozen=True, slots=True)
class Options:
    tiny: bool = False
    """A dry run on the CPU, without timing."""
    quick: bool = False
    """Time only ceilings and cases with a target, with fewer repeats."""
    deadline: float = float("inf")
    """``time.time()`` after which cases are skipped."""
    checks: int = 50
    """Fresh inputs for each case."""
    patience: float = 12.0
    """Seconds after which checks of a case stop."""
    jobs: int = 1
    """Processes for checks."""


Source = Callable[[bool], list[Case]]
"""A function that builds all cases: cases contain functions and cannot be pickled, so each process builds its own."""
Task = tuple[str, int]
"""``check`` or ``time``, and the case's number."""


def run(
    source: Source,
    numbers: Sequence[int],
    options: Options,
    on_result: Callable[[Case, Result], None],
    journal: Journal | None = None,
) -> list[Result]:
    """``numbers``: indices into the cases of ``source``, a module's function. ``on_result`` is called with each result,
    separately for a case's check and its time. Results in ``journal`` from an earlier run are kept."""
    cases = source(options.tiny)
    journal = journal or Journal(None, {})
    found: dict[int, Result] = {}
    for number in numbers:
        case = cases[number]
        kept = journal.get(case.op, case.name)
        found[number] = Result(**kept) if kept else Result(case.op, case.name)

    def begin(task: Task) -> None:
        case = cases[task[1]]
        journal.begin(case.op, case.name, task[0])

    def take(task: Task, outcome: Result | Lost) -> None:
        kind, number = task
        case, known = cases[number], found[number]
        if isinstance(outcome, Lost) and outcome.skipped:
            found[number] = replace(known, skipped=True)
        elif isinstance(outcome, Lost):
            found[number] = replace(known, fault=f"{known.fault} {kind}: {outcome.reason}".strip())
        elif kind == "check":
            found[number] = replace(known, error=outcome.error, fault=outcome.fault, checks=outcome.checks)
        else:
            more = {"seconds": outcome.seconds, "graph": outcome.graph}
            more |= {"rivals": outcome.rivals, "absent": outcome.absent}
            found[number] = replace(known, fault=outcome.fault or known.fault, **more)
        skipped = isinstance(outcome, Lost) and outcome.skipped
        journal.take(case.op, case.name, kind, None if skipped else found[number])
        on_result(case, found[number])

    def tasks(kind: str, wanted: Callable[[Case, Result], bool]) -> list[Task]:
        left = [
            number
            for number in numbers
            if wanted(cases[number], found[number])
            and not journal.done(cases[number].op, cases[number].name, kind)
        ]
        # Cases that an earlier run did not return from come last.
        left.sort(key=lambda number: journal.tries(cases[number].op, cases[number].name, kind))
        return [(kind, number) for number in left]

    for kind, jobs, wanted in (
        ("check", options.jobs, lambda case, result: case.reference is not None or options.tiny),
        ("time", 1, lambda case, result: _timed(case, result, options)),
    ):
        pool = Pool(_work, (source, options), jobs, options.deadline, begin, take)
        pool.run(tasks(kind, wanted))
    return [found[number] for number in numbers]


def _timed(case: Case, result: Result, options: Options) -> bool:
    if options.tiny or not case.timed or (options.quick and case.target is None and case.op != "ceiling"):
        return False
    # Cases that were computed are timed, right or wrong; those that raised, hung or were skipped are not.
    return case.reference is None or result.error is not None


def _work(source: Source, options: Options, task: Task) -> tuple[Result, bool]:
    kind, number = task
    case = source(options.tiny)[number]
    device = torch.device("cpu" if options.tiny else "cuda")
    result = Result(case.op, case.name)
    try:
        if kind == "check":
            result = _checked(case, device, options, result)
        else:
            result = _measured(case, device, 0.3 if options.quick else 1.0, result)
    except Exception as raised:  # Whatever a compiler or a driver raises: others have their turn.
        result = replace(result, fault=_text(raised))
    gc.collect()
    return result, device.type != "cuda" or _sound()


def _checked(case: Case, device: torch.device, options: Options, result: Result) -> Result:
    if case.reference is None:
        case.run(*case.make(device))
        return replace(result, error=0.0)
    worst, count, fault = 0.0, 0, ""
    ends = time.monotonic() + options.patience
    while not fault and count < options.checks and (count == 0 or time.monotonic() < ends):
        torch.manual_seed(count)
        # An interpreter runs one program after the other.
        error, fault = check(case, device, twice=not options.tiny)
        worst, count = max(worst, error), count + 1
        if count == 1:
            # The first compiles.
            ends = time.monotonic() + options.patience
    for rival in case.rivals if options.tiny else ():
        # Checks the rival's layouts; a library that is not installed is not a fault.
        with suppress(ImportError):
            fault = fault or _misread(case, rival, device)
    return replace(result, error=worst, fault=f"inputs {count}: {fault}" if fault else "", checks=count)


def _measured(case: Case, device: torch.device, effort: float, result: Result) -> Result:
    taken, graph = seconds(case, device, effort)
    rivals: dict[str, float] = {}
    absent: dict[str, str] = {}
    for rival in case.rivals:
        try:
            if reason := _misread(case, rival, device):
                raise ValueError(reason)
            own = replace(case, make=_maker(case, rival), run=rival.run)
            rivals[rival.name], _ = seconds(own, device, effort)
        except Exception as raised:  # Another project's library: its error is reported.
            absent[rival.name] = _text(raised)
    return replace(result, seconds=taken, graph=graph, rivals=rivals, absent=absent)


def _maker(case: Case, rival: Rival) -> Callable[[torch.device], tuple[Any, ...]]:
    return lambda device: rival.prepare(*case.make(device))


def _misread(case: Case, rival: Rival, device: torch.device) -> str:
    """How the rival's result differs from the case's. Raises ``ImportError`` if its library is not installed."""
    inputs = case.make(device)
    own = rival.prepare(*deepcopy(inputs))
    expected = case.reference(*inputs) if case.reference else None
    _, fault = compare(rival.run(*own), expected, rival.tolerance)
    return f"{rival.name} computes something else: {fault}" if fault else ""


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip()


def _sound() -> bool:
    """Whether the device still works: after an illegal memory access all further calls of this process fail."""
    with suppress(RuntimeError):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return True
    return False


def pick_jobs(cores: int) -> int:
    """Processes that check at the same time, on this machine's GPU or, without one, on its CPU."""
    if not torch.cuda.is_available():
        return cores
    return max(1, min(cores, torch.cuda.mem_get_info()[0] // SHARE))
