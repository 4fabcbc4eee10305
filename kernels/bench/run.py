"""Runs cases one after another in a process of their own: a kernel that breaks its process, or never ends, costs one
case, and the rest goes on in a new one."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from kernels.bench.case import Case, check
from kernels.bench.timing import seconds

LIMIT = 90.0
"""Seconds for one case, compilation included."""
START = 90.0
"""Seconds more for a process's first, which imports and wakes the device."""
GRACE = 20.0
"""Seconds after the deadline for the case that is under way."""


@dataclass(frozen=True, slots=True)
class Result:
    op: str
    name: str
    error: float | None = None
    """The largest, as ``check`` has it. ``None`` where nothing was computed."""
    fault: str = ""
    """What was wrong with the results, or raised."""
    seconds: float | None = None
    """Of a run; ``None`` where it was not timed."""
    graph: bool = True
    """Whether runs were recorded as a CUDA graph. Otherwise ``seconds`` has the launches' cost in it."""
    skipped: bool = False
    """Because there was no time left."""


@dataclass(frozen=True, slots=True)
class Options:
    tiny: bool = False
    """A trial on the CPU: without timing."""
    quick: bool = False
    """Time ceilings and what has a target alone, and less often."""
    deadline: float = float("inf")
    """In seconds as of ``time.time``: what begins later is skipped."""


Source = Callable[[bool], list[Case]]
"""All cases, which are functions, and cannot be sent to another process: it makes them anew."""


def run(
    source: Source, numbers: Sequence[int], options: Options, say: Callable[[Case, Result], None]
) -> list[Result]:
    """``numbers``: places among those of ``source``, a module's function. ``say`` is told each result as it comes."""
    cases = source(options.tiny)
    results: list[Result] = []

    def take(result: Result) -> None:
        results.append(result)
        say(cases[numbers[len(results) - 1]], result)

    while len(results) < len(numbers):
        if time.time() > options.deadline:
            case = cases[numbers[len(results)]]
            take(Result(case.op, case.name, skipped=True))
            continue
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe(duplex=False)
        process = context.Process(
            target=_work, args=(there, source, numbers[len(results) :], options), daemon=True
        )
        process.start()
        there.close()
        fault = _receive(here, len(numbers) - len(results), options.deadline, take)
        if fault:
            process.kill()
            case = cases[numbers[len(results)]]
            take(Result(case.op, case.name, fault=fault))
        process.join()
    return results


def _receive(connection: Connection, count: int, deadline: float, take: Callable[[Result], None]) -> str:
    """What became of the process if it sent nothing for the next case."""
    limit = START + LIMIT
    for _ in range(count):
        left = max(deadline - time.time(), 0.0) + GRACE
        try:
            if not connection.poll(min(limit, left)):
                return f"not done after {min(limit, left):.0f} s, and ended"
            result = connection.recv()
        except EOFError:
            return "its process ended"
        if result is None:  # It cannot go on after the last one.
            return ""
        take(result)
        limit = LIMIT
    return ""


def _work(connection: Connection, source: Source, numbers: Sequence[int], options: Options) -> None:
    cases = source(options.tiny)
    device = torch.device("cpu" if options.tiny else "cuda")
    for number in numbers:
        case = cases[number]
        if time.time() > options.deadline:
            connection.send(Result(case.op, case.name, skipped=True))
            continue
        connection.send(_result(case, device, options))
        gc.collect()
        if device.type == "cuda" and not _sound():
            connection.send(None)
            return


def _result(case: Case, device: torch.device, options: Options) -> Result:
    error = None
    try:
        error, fault = check(case, device)
        if options.tiny:
            if case.reference is None:
                case.run(*case.make(device))
            return Result(case.op, case.name, error, fault)
        if not case.timed or (options.quick and case.target is None and case.reference is not None):
            return Result(case.op, case.name, error, fault)
        taken, graph = seconds(case, device, 0.3 if options.quick else 1.0)
    except (
        Exception
    ) as raised:  # Whatever a compiler or a driver raises: it is told, and others have their turn.
        return Result(case.op, case.name, error, f"{type(raised).__name__}: {raised}".strip())
    return Result(case.op, case.name, error, fault, taken, graph)


def _sound() -> bool:
    """Whether the device still answers: after a fault of memory all that this process asks of it fails."""
    with suppress(RuntimeError):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return True
    return False
