"""What is usual of a value that comes every hour: mean, mean square, and mean product with that of the hour before.

They are learned by the week: what an hour adds is known from the week's end on, as a quarter of what is known then.
So a change does not become usual before it is found, and one that lasts becomes usual within some weeks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

WEEK = 168
"""Values."""
_MOST_CORRELATED = 0.9
_MEMORY = 7
"""Weeks that are as good as what is known in the long run, of which the last is a quarter."""


def _part(weeks: int) -> float:
    """Of what is known after so many weeks and one more, that week's."""
    return max(1 / (weeks + 1), 0.25)


@dataclass(slots=True)
class Excess:
    """By how much hours differ beyond chance, for each request. A statistic with a mean of 1 by chance has one of
    ``1 + weight * known`` where whole hours differ by themselves: the more requests an hour has (``weight``), the less
    chance hides of that."""

    known: float = 0.0
    beyond: float = 0.0
    weights: float = 0.0
    count: int = 0
    weeks: int = 0

    def add(self, value: float, weight: float) -> None:
        self.beyond += value - 1.0
        self.weights += weight
        self.count += 1
        if self.count >= WEEK:
            fresh = max(0.0, self.beyond / self.weights)
            self.known = self.known + _part(self.weeks) * (fresh - self.known) if self.weeks else fresh
            self.beyond, self.weights, self.count, self.weeks = 0.0, 0.0, 0, self.weeks + 1

    def mean(self, weight: float) -> float:
        """Of the statistic, as is usual."""
        return 1.0 + weight * self.known

    @property
    def so_far(self) -> float:
        """What is known, or in the first week what came of it."""
        return self.known if self.weeks or not self.weights else max(0.0, self.beyond / self.weights)

    def to_json(self) -> list[float | int]:
        floats = (self.known, self.beyond, self.weights)
        return [self.weeks, self.count, *(float(f"{one:.6g}") for one in floats)]

    @classmethod
    def from_json(cls, content: Sequence[float]) -> Self:
        weeks, count, known, beyond, weights = content
        return cls(known, beyond, weights, int(count), int(weeks))


@dataclass(slots=True)
class Moments:
    known: list[float]
    """Mean, mean square, mean product."""
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Of the present week."""
    count: int = 0
    """Values in ``sums``."""
    weeks: int = 0
    last: float | None = None

    def add(self, value: float) -> None:
        before = self.known[0] if self.last is None else self.last
        for place, one in enumerate((value, value * value, value * before)):
            self.sums[place] += one
        self.last = value
        self.count += 1
        if self.count >= WEEK:
            fresh = [one / self.count for one in self.sums]
            if self.weeks:
                part = _part(self.weeks)
                fresh = [
                    before + part * (one - before) for before, one in zip(self.known, fresh, strict=True)
                ]
            self.known, self.sums, self.count, self.weeks = fresh, [0.0, 0.0, 0.0], 0, self.weeks + 1

    @property
    def mean(self) -> float:
        return self.known[0]

    @property
    def variance(self) -> float:
        return max(0.0, self.known[1] - self.known[0] ** 2)

    @property
    def correlation(self) -> float:
        """Of successive hours, 0 to 0.9."""
        variance = self.variance
        covariance = self.known[2] - self.known[0] ** 2
        return min(max(covariance / variance, 0.0), _MOST_CORRELATED) if variance else 0.0

    def doubt(self, correlated: float) -> float:
        """By how much further out a deviation of four times the usual lies where the usual is known of so few values:
        a quantile of Student's distribution by the normal one's, after Cornish and Fisher."""
        independent = WEEK * min(max(self.weeks, 1), _MEMORY) * (1 - correlated) / (1 + correlated)
        return 1 + (4.0**2 + 1) / (4 * independent)

    def to_json(self) -> list[float | int | None]:
        floats = [*self.known, *self.sums, *([self.last] if self.last is not None else [])]
        return [self.weeks, self.count, *(float(f"{one:.5g}") for one in floats)]

    @classmethod
    def from_json(cls, content: Sequence[float]) -> Self:
        weeks, count, *floats = content
        last = floats[6] if len(floats) > 6 else None
        return cls([*floats[:3]], [*floats[3:6]], int(count), int(weeks), last)


def sum_scale(moments: Moments) -> float:
    """By how much more sums of successive values spread than those of independent ones with variance 1, in the long
    run: as of a first-order autoregression, and never less."""
    correlated = moments.correlation
    wider = math.sqrt(max(1.0, moments.variance) * (1 + correlated) / (1 - correlated))
    return wider * moments.doubt(correlated)
