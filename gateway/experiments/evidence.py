"""What has been seen of the two arms of a roll-out, and what it says about each guard.

Requests are counted in blocks, each of which ends as soon as it has ``BLOCK`` of both arms, and is then scored once
(``sequential_test``). Errors are events as they are. Of a latency or a cost the event is that it lies above a quantile
of the control's before the block, times what is tolerated for the new arm. Scores, which come later and of few
requests, have blocks of their own (``scores``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from gateway.experiments.assignment import CONTROL, NEW
from gateway.experiments.scores import CALLERS, JUDGE, ArmScores, Scores, mean_of, no_scores
from gateway.experiments.sequential_test import ODDS, Rate, log_evidence, log_ratios
from gateway.experiments.sketch import Sketch, bins_of

BLOCK = 20
"""Requests of each arm after which a block is scored."""
CALIBRATION = 100
"""Requests of the control from which a quantile is known."""
QUANTILES: Mapping[str, float] = {"ttft_p95": 0.95, "cost": 0.5}
"""Above which of the control's quantiles a guard's measure counts."""
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Observed:
    """What one request says of its arm."""

    failed: bool = False
    first_token: float | None = None
    """Seconds."""
    nanodollars: int = 0
    refused: bool = False


@dataclass(slots=True)
class ArmCounts:
    requests: int = 0
    errors: int = 0
    refusals: int = 0
    nanodollars: int = 0
    ttft_p95: Sketch = field(default_factory=Sketch)
    """Seconds to the first token."""
    cost: Sketch = field(default_factory=Sketch)
    """Nanodollars of requests that cost something."""

    def add(self, one: Observed) -> None:
        self.requests += 1
        self.errors += one.failed
        self.refusals += one.refused
        self.nanodollars += one.nanodollars
        if one.first_token is not None:
            self.ttft_p95.add(one.first_token)
        if one.nanodollars:
            self.cost.add(one.nanodollars)

    def merge(self, other: ArmCounts) -> None:
        self.requests += other.requests
        self.errors += other.errors
        self.refusals += other.refusals
        self.nanodollars += other.nanodollars
        self.ttft_p95.merge(other.ttft_p95)
        self.cost.merge(other.cost)

    def to_json(self) -> Json:
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            **{name: getattr(self, name).to_json() for name in QUANTILES},
        }

    @classmethod
    def from_json(cls, content: Json) -> Self:
        return cls(
            **{name: int(content[name]) for name in _NUMBERS},
            ttft_p95=Sketch.from_json(content["ttft_p95"]),
            cost=Sketch.from_json(content["cost"]),
        )


_NUMBERS = ("requests", "errors", "refusals", "nanodollars")
SOURCES = (JUDGE, CALLERS)
Arms = dict[str, ArmCounts]


def arms() -> Arms:
    return {CONTROL: ArmCounts(), NEW: ArmCounts()}


@dataclass(slots=True)
class Seen:
    """By one worker, since it last added what it saw."""

    arms: Arms = field(default_factory=arms)
    scores: dict[str, ArmScores] = field(default_factory=lambda: {one: no_scores() for one in SOURCES})
    """By who gave them."""

    def merge(self, other: Seen) -> None:
        for arm, counts in other.arms.items():
            self.arms[arm].merge(counts)
        for source, scores in other.scores.items():
            for arm, given in scores.items():
                self.scores[source][arm].update(given)


@dataclass(slots=True)
class Evidence:
    """``guards`` given to its methods are what is tolerated of each: how many times the control's."""

    total: Arms = field(default_factory=arms)
    block: Arms = field(default_factory=arms)
    """The block that is open."""
    in_step: int = 0
    """Requests of the new arm in the present step."""
    sums: dict[str, list[float]] = field(default_factory=dict)
    """Of log-likelihood ratios, by guard and what it tolerates."""
    scores: dict[str, Scores] = field(default_factory=lambda: {one: Scores() for one in SOURCES})
    """By who gave them."""

    def add(self, seen: Seen, guards: Mapping[str, float]) -> None:
        for source, given in seen.scores.items():
            ratios = self.scores[source].add(given, guards.get("score"))
            if ratios is not None:
                self._sum("score", guards["score"], ratios)
        for arm, counts in seen.arms.items():
            self.block[arm].merge(counts)
        self.in_step += seen.arms[NEW].requests
        if min(counts.requests for counts in self.block.values()) >= BLOCK:
            for guard, tolerated in guards.items():
                if guard != "score":
                    self._score(guard, tolerated)
            self._close()

    def next_step(self) -> None:
        """The shares change: a block is of one share."""
        self._close()
        for scores in self.scores.values():
            scores.close()
        self.in_step = 0

    def log_evidence(self, guard: str, tolerated: float) -> float:
        """That the new arm is worse than tolerated; comparable with ``log(1/α)``."""
        sums = self.sums.get(_name(guard, tolerated))
        return log_evidence(sums) if sums else 0.0

    def scored(self, arm: str) -> tuple[int, float | None]:
        """How many scores the arm has, and their mean."""
        counts = sum((scores.of(arm) for scores in self.scores.values()), Counter[int]())
        return counts.total(), mean_of(counts)

    def _close(self) -> None:
        for arm, counts in self.block.items():
            self.total[arm].merge(counts)
        self.block = arms()

    def _score(self, guard: str, tolerated: float) -> None:
        new, control = self.block[NEW], self.block[CONTROL]
        if guard in QUANTILES:
            before: Sketch = getattr(self.total[CONTROL], guard)
            at = before.bin_at(QUANTILES[guard]) if before.count >= CALIBRATION else None
            if at is None:
                return
            seen_new: Sketch = getattr(new, guard)
            seen_control: Sketch = getattr(control, guard)
            ratios = log_ratios(
                Rate(seen_new.above(at + bins_of(tolerated)), seen_new.count),
                Rate(seen_control.above(at), seen_control.count),
            )
        else:
            ratios = log_ratios(
                Rate(getattr(new, guard), new.requests),
                Rate(getattr(control, guard), control.requests),
                tolerated,
            )
        self._sum(guard, tolerated, ratios)

    def _sum(self, guard: str, tolerated: float, ratios: Sequence[float]) -> None:
        sums = self.sums.setdefault(_name(guard, tolerated), [0.0] * len(ODDS))
        sums[:] = [a + b for a, b in zip(sums, ratios, strict=True)]

    def to_json(self) -> Json:
        return {
            "total": {arm: counts.to_json() for arm, counts in self.total.items()},
            "block": {arm: counts.to_json() for arm, counts in self.block.items()},
            "in_step": self.in_step,
            "sums": self.sums,
            "scores": {source: scores.to_json() for source, scores in self.scores.items()},
        }

    @classmethod
    def from_json(cls, content: Json) -> Self:
        found = cls(
            _arms_from(content["total"]),
            _arms_from(content["block"]),
            int(content["in_step"]),
            {name: [float(one) for one in sums] for name, sums in content["sums"].items()},
        )
        # Earlier versions knew of no scores.
        for source, scores in content.get("scores", {}).items():
            found.scores[source] = Scores.from_json(scores)
        return found


def _arms_from(content: Json) -> Arms:
    return {arm: ArmCounts.from_json(content[arm]) for arm in (CONTROL, NEW)}


def _name(guard: str, tolerated: float) -> str:
    """A guard that tolerates something else begins anew."""
    return f"{guard} {tolerated:g}"
