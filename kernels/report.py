"""The report ``python -m kernels report``: every variant of every kernel, compiled for every chip, with its faults."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from kernels.compile import SHARED_LIMITS, Code, compile_variant, faults
from kernels.launch import ARCHS, Variant


@dataclass(frozen=True, slots=True)
class Row:
    """One variant on one chip. Without ``code`` it did not compile."""

    op: str
    variant: str
    arch: str
    code: Code | None
    faults: tuple[str, ...]
    seconds: float = 0.0
    """Processor seconds of the compilation."""


Task = tuple[str, str, int]
"""(operation, chip, index of the variant): kernels cannot be pickled."""


def operations() -> list[str]:
    """The modules of this package that have variants to compile, found without importing them."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return [file.stem for file in files if "\ndef variants(" in file.read_text(encoding="utf-8")]


def report(
    ops: Sequence[str], archs: Sequence[str] = ARCHS, jobs: int | None = None, limit: int | None = None
) -> list[Row]:
    """``ops`` are modules of this package, or full names of others. ``jobs``: processes, by default one a core.
    ``limit``: no more than so many variants of an operation, the first."""
    tasks: list[Task] = []
    rows: list[Row] = []
    for op in ops:
        for arch in archs:
            try:
                variants = _variants(op, arch)
            except Exception as error:  # Raised by a module; it is reported with the other results.
                rows.append(Row(op, "", arch, None, (f"variants: {_text(error)}",)))
                continue
            tasks += ((op, arch, index) for index in range(len(variants[:limit])))
            names = Counter(variant.name for variant in variants)
            rows += (
                Row(op, name, arch, None, (f"is the name of {count} variants",))
                for name, count in names.items()
                if count > 1
            )
            if not variants:
                rows.append(Row(op, "", arch, None, ("variants: there are none",)))
    rows += _run(tasks, jobs or len(os.sched_getaffinity(0)))
    place = {op: index for index, op in enumerate(ops)}
    return sorted(rows, key=lambda row: (place[row.op], archs.index(row.arch)))


def _run(tasks: Sequence[Task], jobs: int) -> list[Row]:
    """In the tasks' order. A crash of the compiler ends its process: the tasks in progress are then retried one by
    one."""
    done: dict[Task, Row] = {}
    _pool(tasks, jobs, done)
    for task in tasks:
        if task not in done:
            _pool([task], 1, done)
        if task not in done:
            op, arch, index = task
            name = _variants(op, arch)[index].name
            done[task] = Row(op, name, arch, None, ("the compiler crashed",))
    return [done[task] for task in tasks]


def _pool(tasks: Sequence[Task], jobs: int, done: dict[Task, Row]) -> None:
    # Forked, as torch has been imported here, which takes seconds.
    with ProcessPoolExecutor(min(jobs, len(tasks)) or 1, multiprocessing.get_context("fork")) as pool:
        try:
            futures = {pool.submit(_row, *task): task for task in tasks}
            for future in as_completed(futures):
                done[futures[future]] = future.result()
        except BrokenProcessPool:
            return


def _row(op: str, arch: str, index: int) -> Row:
    variant = _variants(op, arch)[index]
    began = _worked()
    try:
        code = compile_variant(variant, arch)
    except Exception as error:  # Whatever a compiler raises.
        return Row(
            op,
            variant.name,
            arch,
            None,
            (f"does not compile: {_text(error)}",),
            _worked() - began,
        )
    found = tuple(faults(variant, code, arch))
    return Row(op, variant.name, arch, code, found, _worked() - began)


def _worked() -> float:
    """Processor seconds, including those of child processes."""
    return sum(os.times()[:4])


def _variants(op: str, arch: str) -> list[Variant]:
    return list(importlib.import_module(op if "." in op else f"kernels.{op}").variants(arch))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip()


def table(rows: Iterable[Row]) -> str:
    """A line for each row, followed by all faults in full."""
    lines = [("", "op", "variant", "arch", "registers", "spilled", "shared KB", "matrix", "16-byte loads")]
    lines += (_cells(row) for row in rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    for row in rows:
        for fault in row.faults:
            text.append(f"\nFAULT {' '.join(filter(None, (row.op, row.arch, row.variant)))}:")
            text += (f"    {line}" for line in fault.splitlines())
    return "\n".join(text)


def _cells(row: Row) -> tuple[str, ...]:
    mark = "!" if row.faults else ""
    if row.code is None:
        return (mark, row.op, row.variant, row.arch, "-", "-", "-", "-", "-")
    shared = f"{row.code.shared / 1024:.1f} of {SHARED_LIMITS[row.arch] >> 10}"
    matrix = ", ".join(f"{count} {kind}" for kind, count in row.code.matrix.items()) or "-"
    loads = str(row.code.wide_loads or "-")
    return (
        mark,
        row.op,
        row.variant,
        row.arch,
        str(row.code.registers),
        str(row.code.spilled),
        shared,
        matrix,
        loads,
    )
