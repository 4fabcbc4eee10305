"""Quantiles of positive numbers to within a relative error, in a few hundred counts that can be added up.

DDSketch (Masson, Rim and Lee 2019, https://arxiv.org/abs/1908.10693): bin ``i`` counts the values in
``(γ^(i-1), γ^i]``, with ``γ = (1 + a) / (1 - a)`` for a relative error of ``a``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

ERROR = 0.02
_LOG_GAMMA = math.log((1 + ERROR) / (1 - ERROR))
_SMALLEST = 1e-6
"""What is smaller counts as this, so that a sketch has at most a thousand bins."""


class Sketch:
    """``bins`` are counts by bin."""

    def __init__(self, bins: Mapping[int, int] | None = None) -> None:
        self.bins = Counter(bins or {})

    def add(self, value: float) -> None:
        self.bins[bin_of(value)] += 1

    def merge(self, other: Sketch) -> None:
        self.bins.update(other.bins)

    @property
    def count(self) -> int:
        return self.bins.total()

    def bin_at(self, share: float) -> int | None:
        """The bin of this quantile; None where nothing was counted."""
        rank = share * (self.count - 1)
        seen = 0
        for index, count in sorted(self.bins.items()):
            seen += count
            if seen > rank:
                return index
        return None

    def quantile(self, share: float) -> float | None:
        """To within a relative ``ERROR``."""
        index = self.bin_at(share)
        return None if index is None else 2 * math.exp(index * _LOG_GAMMA) / (1 + math.exp(_LOG_GAMMA))

    def above(self, index: int) -> int:
        """How many values were counted in higher bins."""
        return sum(count for one, count in self.bins.items() if one > index)

    def to_json(self) -> dict[str, int]:
        return {str(index): count for index, count in sorted(self.bins.items())}

    @classmethod
    def from_json(cls, content: Mapping[str, int]) -> Sketch:
        return cls({int(index): int(count) for index, count in content.items()})


def bin_of(value: float) -> int:
    return math.ceil(math.log(max(value, _SMALLEST)) / _LOG_GAMMA)


def bins_of(factor: float) -> int:
    """By how many bins values move that grow by ``factor``."""
    return round(math.log(factor) / _LOG_GAMMA)
