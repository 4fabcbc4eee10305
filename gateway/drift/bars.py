"""From how many false alarms a month are tolerated to what counts as over the bar, for so many series at once.

Of the budget of ``F`` false alarms a month each of ``m`` series (a measure of a model and route) gets an even part,
half for each of its two tests: Bonferroni's bound, which holds however the series depend on each other.

- PSI: ``F / (2 m 730)`` is the chance of a false alarm in each hour. Two hours in a row have to be over the bar: one
  burst of one caller is no drift, and the chi-square approximation is trusted less far out. Of two normal variables
  with correlation ``ρ`` both are far out, where one is with chance ``p``, with about ``p^(2 / (1 + ρ))``; so an
  hour's own chance is ``(F / (2 m 730))^((1 + ρ) / 2)``.
- CUSUM: the mean time between false alarms of both sides is ``2 m 730 / F`` hours, of one side twice that. Siegmund's
  approximation (Sequential Analysis, 1985) gives the height for it:
  ``(exp(2 k b) - 1 - 2 k b) / (2 k²)`` hours with ``b = h + 1.166``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Self

HOURS = 730.0
"""Of a month."""
ALLOWANCE = 0.25
"""``k``: standard deviations of an hour's mean by which it may be off without adding to a CUSUM's sum; half of the
smallest lasting shift that is to be found soon."""
IN_A_ROW = 2
"""Hours."""
_NORMAL = NormalDist()
_OVERSHOOT = 1.166


@dataclass(frozen=True, slots=True)
class Bars:
    chance: float
    """Of a false alarm of one series in one hour, by each test."""
    height: float
    """Of a CUSUM's sum."""

    @classmethod
    def of(cls, false_alarms: float, series: int) -> Self:
        """``false_alarms`` a month over all ``series``."""
        chance = min(0.1, false_alarms / (2 * max(series, 1) * HOURS))
        return cls(chance, cusum_height(2 / chance))

    def hour(self, correlated: float) -> float:
        """The chance of one hour to be over the bar, where successive hours are so correlated."""
        return float(self.chance ** ((1 + correlated) / IN_A_ROW))


def chi_square_above(chance: float, freedom: float) -> float:
    """What a chi-square variable exceeds with this chance, by Wilson and Hilferty (1931): to within 1 % from four
    degrees of freedom on, and up to a tenth too high below."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + _NORMAL.inv_cdf(1 - chance) * math.sqrt(part)) ** 3)


def run_length(height: float) -> float:
    """Hours until one side of a CUSUM gets over ``height`` by chance, in the mean."""
    exponent = 2 * ALLOWANCE * (height + _OVERSHOOT)
    return (math.exp(exponent) - 1 - exponent) / (2 * ALLOWANCE**2)


def cusum_height(hours: float) -> float:
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if run_length(middle) < hours else (low, middle)
    return high
