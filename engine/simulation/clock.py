"""How long a step takes, from what is in it: a sum of operators, each as long as what it is bound by.

An operator is given as its bounds, and takes the largest of them (a roofline, Williams et al. 2009,
https://doi.org/10.1145/1498765.1498785): so many seconds for each unit of a step's ``FEATURES``. What these are on
which machine is not known here; ``gateway/lab/plan`` knows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.plan import Plan

FEATURES = ("steps", "tokens", "sequences", "samples", "experts")
"""Of each step: 1; tokens through the model; requests; tokens sampled; the share of experts that some token takes. Then
for each entry of ``windows`` two: cached tokens that are read, and pairs of a query and a key."""


@dataclass(frozen=True, slots=True)
class StepClock:
    operators: tuple[tuple[tuple[float, ...], ...], ...]
    """Of each operator its bounds, of each bound the seconds a unit of each feature."""
    windows: tuple[int | None, ...] = (None,)
    """Kinds of layers: how many tokens a token sees; ``None``: all before it."""
    missed: float = 1.0
    """The share of experts that one token does not take."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> StepClock:
        """Raises ``ValueError`` where bounds do not fit the features."""
        clock = cls(
            tuple(tuple(tuple(map(float, bound)) for bound in bounds) for bounds in given["operators"]),
            tuple(given["windows"]),
            float(given["missed"]),
        )
        wanted = len(FEATURES) + 2 * len(clock.windows)
        if any(len(bound) != wanted for bounds in clock.operators for bound in bounds):
            raise ValueError(f"each bound has {wanted} numbers, one for each feature of a step")
        return clock

    def features(self, plan: Plan) -> list[float]:
        tokens = samples = 0
        reads = [0] * len(self.windows)
        pairs = [0] * len(self.windows)
        for one in plan.requests:
            count, start = len(one.tokens), one.start
            tokens += count
            samples += one.sampling is not None
            for kind, window in enumerate(self.windows):
                reads[kind] += seen(start + count, count, window)
                pairs[kind] += scored(start, count, window)
        found = [1.0, tokens, len(plan.requests), samples, 1.0 - self.missed**tokens]
        for read, scores in zip(reads, pairs, strict=True):
            found += (read, scores)
        return found

    def parts(self, features: Sequence[float]) -> list[tuple[float, int]]:
        """Of each operator the seconds, and which of its bounds they are."""
        return [
            max(
                (sum(map(float.__mul__, bound, map(float, features))), -number)
                for number, bound in enumerate(bounds)
            )
            for bounds in self.operators
        ]


def seen(end: int, count: int, window: int | None) -> int:
    """Cached tokens that the last ``count`` of ``end`` tokens read, themselves included."""
    return end if window is None else min(end, window + count - 1)


def scored(start: int, count: int, window: int | None) -> int:
    """Pairs of a query and a key of ``count`` tokens from position ``start`` on."""
    if window is None or start + count <= window:
        return count * start + count * (count + 1) // 2
    growing = max(0, window - start)
    return growing * start + growing * (growing + 1) // 2 + (count - growing) * window
