"""What a machine really does, measured by ``tollgate bench --calibration``, as an ``Efficiency``.

The shares of bandwidth and FLOPs and the times beside are those by which the same formulas come nearest to what was
measured: the logarithms of measured by computed times, squared. One machine and model do not tell all of them apart, so
each is also drawn a little towards its default (ridge regression, in logarithms).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.step_clock import Efficiency, Step, StepClock

FITTED = ("bandwidth", "compute", "step", "sequence", "request")
_PULL = 1e-4
"""Weight of being off the default."""
_STRIDES = (2.0, 1.2, 1.04, 1.01)
_ROUNDS = 40
_STEPS = (1e-3, 1e-2)
_SEQUENCES = (2e-5, 3e-4, 3e-3)
"""Seconds to begin with."""


@dataclass(frozen=True, slots=True)
class Load:
    """So many requests at a time, each followed by the next; means over requests."""

    concurrency: int
    prompt: float
    output: float
    ttft: float
    e2e: float


@dataclass(frozen=True)
class Calibration:
    loads: Sequence[Load]
    told: str
    """What was measured, and when."""


@dataclass(frozen=True)
class Fit:
    reached: Efficiency
    error: float
    """Of the typical load: the root of the mean squared logarithm of measured by computed."""
    told: str


def read_calibration(path: str) -> Calibration:
    """Raises ``PlanError``."""
    try:
        tree = json.loads(Path(path).read_bytes())
        if tree["calibration"] != 1:
            raise ValueError(f"its form {tree['calibration']!r} is not known")
        loads = [load for row in tree["loads"] for load in _loads(int(row["concurrency"]), row["requests"])]
        told = f"{tree['model']} at {tree['server']}, {tree['measured']}"
    except OSError as error:
        raise PlanError(f"--calibration {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise PlanError(
            f"--calibration {path}: cannot be read ({type(error).__name__}: {error}); it is what tollgate bench "
            "--calibration FILE --concurrency 1,4,16 --prompt-tokens uniform:50-1000 writes"
        ) from None
    if {load.concurrency for load in loads} <= {1}:
        raise PlanError(f"--calibration {path}: there must be requests alone and several at a time in it")
    return Calibration(loads, told)


def _loads(concurrency: int, requests: Sequence[Any]) -> list[Load]:
    """Of requests alone the shorter and the longer half of the prompts apart, so that their slope is seen."""
    rows = sorted((tuple(map(float, row)) for row in requests if row[1] > 0), key=lambda row: row[0])
    half = len(rows) // 2
    parts = (rows[:half], rows[half:]) if concurrency == 1 and half >= 3 else (rows,)
    return [
        Load(concurrency, *(sum(column) / len(part) for column in zip(*part, strict=True)))
        for part in parts
        if part
    ]


def fit(given: Calibration, clock: Callable[[Efficiency], StepClock], step_tokens: int) -> Fit:
    """``clock``: of the machine that was measured."""
    usual = Efficiency()

    def loss(reached: Efficiency) -> float:
        pull = sum(math.log(getattr(reached, name) / getattr(usual, name)) ** 2 for name in FITTED)
        return _misses(given.loads, clock(reached), reached.request, step_tokens) + _PULL * pull

    # From the defaults of a GPU no small stride leads to a processor's thousand times slower steps.
    starts = [replace(usual, step=step, sequence=one) for step, one in product(_STEPS, _SEQUENCES)]
    best = min((_descended(start, loss) for start in starts), key=loss)
    error = math.sqrt(_misses(given.loads, clock(best), best.request, step_tokens))
    return Fit(best, error, given.told)


def _descended(best: Efficiency, loss: Callable[[Efficiency], float]) -> Efficiency:
    """One number after the other, by strides that get smaller."""
    least = loss(best)
    for stride in _STRIDES:
        for _ in range(_ROUNDS):
            before = least
            for name in FITTED:
                for factor in (stride, 1 / stride):
                    tried = replace(best, **{name: getattr(best, name) * factor})
                    if (found := loss(tried)) < least:
                        best, least = tried, found
            if before - least < 1e-6:
                break
    return best


def _misses(loads: Sequence[Load], clock: StepClock, delay: float, step_tokens: int) -> float:
    """Mean squared logarithm of measured by computed, of first tokens alone and of whole requests."""
    squares = []
    for load in loads:
        first, whole = computed(load, clock, delay, step_tokens)
        squares.append(math.log(load.e2e / whole) ** 2)
        if load.concurrency == 1:
            squares.append(math.log(load.ttft / first) ** 2)
    return sum(squares) / len(squares)


def computed(load: Load, clock: StepClock, delay: float, step_tokens: int) -> tuple[float, float]:
    """Seconds to the first token of a request alone, and of a whole one among ``load.concurrency``.

    Each request goes through as many steps as its answer has tokens, in which the others' prompts are computed, too: in
    a closed loop one of each of them.
    """
    first = delay + _prefill(load.prompt, clock, step_tokens)
    context, others = load.prompt + load.output / 2, load.concurrency - 1
    decode = clock.decode(load.concurrency, context)
    beside = clock.decode(max(1, others), context)
    chunk = min(load.prompt, step_tokens)
    mixed = clock.seconds(_joined(beside, clock.prefill(chunk))) - clock.seconds(beside)
    prompts = others * load.prompt / chunk * mixed
    return first, first + max(0.0, load.output - 1) * clock.seconds(decode) + prompts


def _prefill(prompt: float, clock: StepClock, step_tokens: int) -> float:
    seconds = before = 0.0
    while before < prompt:
        chunk = min(step_tokens, prompt - before)
        seconds += clock.seconds(clock.prefill(chunk, before))
        before += chunk
    return seconds


def _joined(one: Step, other: Step) -> Step:
    return Step(
        one.tokens + other.tokens,
        one.sequences + other.sequences,
        one.samples + other.samples,
        [a + b for a, b in zip(one.reads, other.reads, strict=True)],
        [a + b for a, b in zip(one.pairs, other.pairs, strict=True)],
    )


def machine_of(text: str | None, names: Mapping[str, Any]) -> tuple[str, int, str] | None:
    """``CHIP[,tp=N][,QUANTIZATION]`` as chip, ranks and the name of a precision ("" where none is given)."""
    if text is None:
        return None
    chip, *rest = (part.strip() for part in text.split(","))
    ranks, precision = 1, ""
    for part in rest:
        key, equals, value = part.partition("=")
        if equals and key == "tp" and value.isdecimal() and int(value) > 0:
            ranks = int(value)
        elif not equals and not precision:
            precision = part
        else:
            raise PlanError(f"--calibrated-on: '{part}' is neither tp=N nor a quantization, as h100,tp=2,fp8")
    if chip not in names:
        raise PlanError(f"--calibrated-on {chip}: not among the chips that are asked for: {', '.join(names)}")
    return chip, ranks, precision
