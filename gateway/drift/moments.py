"""What is usual of a value that comes every hour: mean, mean square, and mean product with that of the hour before.

They are learned by the week: what an hour adds is known from the week's end on, as half of what is known then. So a
change does not become usual before it is found, and one that lasts becomes usual within some weeks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

WEEK = 168
"""Values."""
_MOST_CORRELATED = 0.9


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
                fresh = [(one + other) / 2 for one, other in zip(self.known, fresh, strict=True)]
            self.known, self.sums, self.count, self.weeks = fresh, [0.0, 0.0, 0.0], 0, self.weeks + 1

    @property
    def so_far(self) -> list[float]:
        """What is known, or in the first week the mean of what came."""
        if self.weeks or not self.count:
            return self.known
        return [one / self.count for one in self.sums]

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
    return math.sqrt(max(1.0, moments.variance) * (1 + correlated) / (1 - correlated))
