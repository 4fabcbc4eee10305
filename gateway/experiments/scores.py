"""Scores of answers from 0 to 1, as evidence for or against an arm.

Scores of a judge and of callers are counted apart, each in blocks that end as soon as they have ``BLOCK`` of both arms:
callers who say something may do so more often of one arm than of the other. The event is that a score is low: below the
one of the control's scores so far that parts them most nearly into halves. How many of a block's scores are low in
either arm has the distribution that ``sequential_test`` knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from gateway.experiments.assignment import CONTROL, NEW
from gateway.experiments.sequential_test import Rate, log_ratios

JUDGE, CALLERS = "judge", "callers"
"""Who gives scores."""
BLOCK = 10
"""Scores of each arm after which a block is counted."""
CALIBRATION = 50
"""Scores of the control from which it is known what a low one is."""
STEPS = 100
"""A score is kept as a whole number of so many."""

ArmScores = dict[str, Counter[int]]
"""By arm."""


def no_scores() -> ArmScores:
    return {CONTROL: Counter(), NEW: Counter()}


@dataclass(slots=True)
class Scores:
    """All from one source."""

    total: ArmScores = field(default_factory=no_scores)
    block: ArmScores = field(default_factory=no_scores)
    """The block that is open."""

    def add(self, seen: Mapping[str, Counter[int]], tolerated: float | None) -> Sequence[float] | None:
        """The log-likelihood ratios of the block that this ends, if it does. ``tolerated``: how many times the
        control's odds of a low score; None where no guard asks."""
        for arm, counts in seen.items():
            self.block[arm].update(counts)
        if min(counts.total() for counts in self.block.values()) < BLOCK:
            return None
        ratios = None if tolerated is None else self._ratios(tolerated)
        self.close()
        return ratios

    def close(self) -> None:
        for arm, counts in self.block.items():
            self.total[arm].update(counts)
        self.block = no_scores()

    def of(self, arm: str) -> Counter[int]:
        return self.total[arm] + self.block[arm]

    def _ratios(self, tolerated: float) -> Sequence[float] | None:
        before = self.total[CONTROL]
        if before.total() < CALIBRATION:
            return None
        low = _parting(before)
        new, control = (
            Rate(sum(count for score, count in counts.items() if score < low), counts.total())
            for counts in (self.block[NEW], self.block[CONTROL])
        )
        return log_ratios(new, control, tolerated)

    def to_json(self) -> dict[str, Any]:
        return {"total": _json(self.total), "block": _json(self.block)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return cls(_counts(content["total"]), _counts(content["block"]))


def step_of(score: float) -> int:
    return round(min(1.0, max(0.0, score)) * STEPS)


def mean_of(counts: Counter[int]) -> float | None:
    """From 0 to 1; None of none."""
    if not (number := counts.total()):
        return None
    return sum(score * count for score, count in counts.items()) / number / STEPS


def _parting(counts: Counter[int]) -> int:
    """The score for which the share of lower ones is nearest to a half."""
    number, below, best, least = counts.total(), 0, 0, 2.0
    for score, count in sorted(counts.items()):
        if (off := abs(below / number - 0.5)) < least:
            best, least = score, off
        below += count
    return best


def _json(scores: ArmScores) -> dict[str, dict[str, int]]:
    return {
        arm: {str(score): count for score, count in sorted(counts.items())} for arm, counts in scores.items()
    }


def _counts(content: Mapping[str, Mapping[str, int]]) -> ArmScores:
    return {
        arm: Counter({int(score): int(count) for score, count in content[arm].items()})
        for arm in (CONTROL, NEW)
    }
