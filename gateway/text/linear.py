"""Linear text models in plain Python: for each label

    log-odds = bias + Σ weight[feature] / divisor + Σ weight[measure] · clip(measure)

over the features that a text has (words, runs of letters …) and over measures of its form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

Divisor = Callable[[int, int], float]
"""Takes the number of a text's features, and of those among them that have weights."""


class Measures(NamedTuple):
    """What measures of a text's form count for; all three have an entry for each."""

    weights: Sequence[float]
    low: Sequence[float]
    """Measures below this, or above ``high``, count as this: beyond what training saw nothing is known."""
    high: Sequence[float]

    def total(self, values: Sequence[float]) -> float:
        return math.fsum(
            weight * min(max(value, low), high)
            for value, weight, low, high in zip(values, *self, strict=True)
        )


class LinearModel:
    """One label or several over the same features."""

    __slots__ = ("_bias", "_divisor", "_rows")

    def __init__(
        self,
        bias: Sequence[float],
        rows: Mapping[str, Sequence[float]],
        divisor: Divisor = lambda features, known: 1.0,
    ) -> None:
        """``rows`` has a feature's weights, one for each label as in ``bias``."""
        self._bias = bias
        self._rows = rows
        self._divisor = divisor

    @classmethod
    def of_columns(cls, bias: Sequence[float], columns: Sequence[Mapping[str, float]]) -> LinearModel:
        """Of each label's weights by feature; the sums are not divided."""
        features = set().union(*columns)
        return cls(bias, {one: tuple([column.get(one, 0.0) for column in columns]) for one in features})

    def log_odds(self, features: AbstractSet[str]) -> list[float]:
        """In the labels' order, without any measures."""
        rows = self._rows
        known = [rows[one] for one in features & rows.keys()]
        if not known:
            return list(self._bias)
        divisor = self._divisor(len(features), len(known))
        # fsum, as a set's order differs between processes, and a rounding error must not decide.
        sums = [math.fsum(column) for column in zip(*known, strict=True)]
        return [bias + total / divisor for bias, total in zip(self._bias, sums, strict=True)]


def log_odds(probability: float, least: float) -> float:
    """The logit of a probability that is held between ``least`` and 1 - ``least``."""
    bounded = min(max(probability, least), 1 - least)
    return math.log(bounded / (1 - bounded))


def probability(log_odds: float) -> float:
    """The logistic function; finite for any number."""
    return 1 / (1 + math.exp(-max(min(log_odds, 60.0), -60.0)))
