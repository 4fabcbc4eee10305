"""Tables and summaries of a run."""

from __future__ import annotations

import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from kernels.bench.case import Case
from kernels.bench.ceilings import peak
from kernels.bench.run import Result
from kernels.launch import triton

HEADS = (
    "op",
    "case",
    "checks",
    "time",
    "rate",
    "of ceiling",
    "target",
    "ceiling",
    "of chip",
    "times as fast as",
)


def machine() -> dict[str, str]:
    """What the figures are of."""
    found = {
        "chip": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU",
        "driver": _driver(),
        "torch": torch.__version__,
        "triton": triton.__version__ if triton is not None else "none",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["memory"] = f"{properties.total_memory / 2**30:.0f} GiB"
    return found


def _driver() -> str:
    for program, question in (
        ("nvidia-smi", ["--query-gpu=driver_version", "--format=csv,noheader"]),
        ("rocm-smi", ["--showdriverversion", "--csv"]),
    ):
        if shutil.which(program):
            done = subprocess.run([program, *question], capture_output=True, text=True)
            if done.returncode == 0 and (lines := done.stdout.split("\n")[0].strip()):
                return lines
    return "unknown"


def rate(case: Case, seconds: float) -> tuple[float, str]:
    """The rate per second, and its unit."""
    return (case.flops / seconds / 1e12, "TFLOP/s") if case.flops else (case.bytes / seconds / 1e9, "GB/s")


def share(case: Case, result: Result, ceilings: Mapping[str, float]) -> float | None:
    """The share of the ceiling's rate; ``None`` if either was not measured."""
    if result.seconds is None or case.ceiling not in ceilings:
        return None
    return rate(case, result.seconds)[0] / ceilings[case.ceiling]


def rates(cases: Sequence[Case], results: Sequence[Result]) -> dict[str, float]:
    """The rates of all ceilings that were measured."""
    return {
        case.name: rate(case, result.seconds)[0]
        for case, result in zip(cases, results, strict=True)
        if case.op == "ceiling" and result.seconds is not None
    }


def line(case: Case, result: Result) -> str:
    """A result as printed during the run, before the ceilings are known."""
    text = f"{case.op} {case.name}: "
    if result.skipped:
        return text + "skipped, no time left"
    if result.fault:
        text += f"FAULT {result.fault} "
    elif case.reference is not None and result.error is not None:
        text += f"ok for {result.checks} inputs, error {result.error:.1e} "
    if result.seconds is not None:
        value, unit = rate(case, result.seconds)
        text += f"{result.seconds * 1e6:.1f} µs {value:.4g} {unit} {beside(result)}"
    return text.rstrip()


def rows(cases: Sequence[Case], results: Sequence[Result], chip: str = "") -> list[tuple[str, ...]]:
    """The table of all timed cases, with a dash for those not measured."""
    ceilings = rates(cases, results)
    lines = []
    for case, result in zip(cases, results, strict=True):
        if not case.timed:
            continue
        time_cell = rate_cell = part_cell = chip_cell = "-"
        if result.seconds is not None:
            value, unit = rate(case, result.seconds)
            time_cell = f"{result.seconds * 1e6:,.1f} µs" + ("" if result.graph else " (no graph)")
            rate_cell = f"{value:,.4g} {unit}"
            if (most := peak(chip, bool(case.flops))) is not None:
                chip_cell = f"{(case.flops or case.bytes) / result.seconds / most:.1%}"
        if (part := share(case, result, ceilings)) is not None:
            part_cell = f"{part:.1%}"
        target = "" if case.target is None else f"{case.target:.0%}"
        if case.target is not None and part is not None:
            target += " met" if part >= case.target else " missed"
        lines.append(
            (
                case.op,
                case.name,
                "wrong" if result.fault else str(result.checks or "-"),
                time_cell,
                rate_cell,
                part_cell,
                target,
                case.ceiling,
                chip_cell,
                beside(result),
            )
        )
    return lines


def beside(result: Result) -> str:
    """The speed-up over rivals."""
    if not result.seconds:
        return ""
    return ", ".join(f"{taken / result.seconds:.2f} {name}" for name, taken in result.rivals.items())


def text(cases: Sequence[Case], results: Sequence[Result], chip: str = "") -> str:
    lines = [HEADS, *rows(cases, results, chip)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def markdown(about: Mapping[str, str], cases: Sequence[Case], results: Sequence[Result]) -> str:
    lines = [", ".join(f"{key} {value}" for key, value in about.items()), ""]
    lines += [f"| {' | '.join(HEADS)} |", "|---|---|--:|--:|--:|--:|---|---|--:|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows(cases, results, about.get("chip", ""))]
    return "\n".join([*lines, "", *summary(cases, results)]) + "\n"


def summary(cases: Sequence[Case], results: Sequence[Result]) -> list[str]:
    """The number of cases checked, wrong and skipped."""
    both = list(zip(cases, results, strict=True))
    checked = [
        result for case, result in both if case.reference is not None and (result.checks or result.fault)
    ]
    wrong = [result for result in checked if result.fault]
    lines = [f"{len(checked) - len(wrong)} of {len(checked)} checks against the references passed."]
    lines += [f"FAULT {result.op} {result.name}: {result.fault}" for result in wrong]
    lines += [
        f"Not measured: {result.name}: {result.fault}"
        for case, result in both
        if case.reference is None and result.fault
    ]
    for name, reason in dict.fromkeys(
        (name, reason) for result in results for name, reason in result.absent.items()
    ):
        lines.append(f"Not compared with {name}: {reason.splitlines()[0][:160]}")
    if skipped := [result for result in results if result.skipped]:
        ops = dict.fromkeys(result.op for result in skipped)
        lines.append(f"Skipped, no time left: {len(skipped)} cases of {', '.join(ops)}.")
    return lines


def as_json(about: Mapping[str, str], cases: Sequence[Case], results: Sequence[Result]) -> dict[str, Any]:
    ceilings = rates(cases, results)
    return {
        "machine": dict(about),
        "results": [
            asdict(result)
            | {"bytes": case.bytes, "flops": case.flops, "ceiling": case.ceiling, "target": case.target}
            | {"share": share(case, result, ceilings)}
            for case, result in zip(cases, results, strict=True)
        ],
    }
