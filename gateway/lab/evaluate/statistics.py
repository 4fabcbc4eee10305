"""What two models' answers to the same cases say of the models.

- ``mcnemar``: McNemar's exact test with mid-p (Fagerland, Lydersen, Laake 2013, doi:10.1186/1471-2288-13-91): only
  cases that one passes and the other fails tell which is better.
- ``difference_bound``: Bonett and Price's interval of a difference of paired shares (2012,
  doi:10.3102/1076998611411915).
- ``bootstrap``: percentiles of the mean over resampled cases (Efron 1979), both models' answers to a case together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Pairs:
    """Cases by who passed them: ``gained`` the candidate alone, ``lost`` the baseline alone."""

    both: int
    gained: int
    lost: int
    neither: int

    @property
    def count(self) -> int:
        return self.both + self.gained + self.lost + self.neither

    @property
    def difference(self) -> float:
        """Of the candidate's share of passes to the baseline's."""
        return (self.gained - self.lost) / self.count if self.count else 0.0


def mcnemar(pairs: Pairs) -> float:
    """How likely so uneven a split is, or one more so, where none is better: two-sided mid-p."""
    told, fewer = pairs.gained + pairs.lost, min(pairs.gained, pairs.lost)
    if told == 0:
        return 1.0
    log_half = told * math.log(0.5)
    terms = [
        math.exp(math.lgamma(told + 1) - math.lgamma(k + 1) - math.lgamma(told - k + 1) + log_half)
        for k in range(fewer + 1)
    ]
    return min(1.0, 2 * sum(terms) - terms[-1])


def difference_bound(pairs: Pairs, confidence: float) -> float:
    """The difference is below this, with ``confidence`` (one-sided): the worst that speaks for the candidate."""
    size = pairs.count + 2
    gained, lost = (pairs.gained + 1) / size, (pairs.lost + 1) / size
    spread = math.sqrt(max(0.0, gained + lost - (gained - lost) ** 2) / size)
    return gained - lost + NormalDist().inv_cdf(confidence) * spread


def bootstrap(differences: Sequence[float], confidence: float, *, seed: int = 0) -> tuple[float, float]:
    """Of the mean of a difference that each case has; the same ``seed``, the same interval."""
    if not differences:
        return 0.0, 0.0
    random, count = Random(seed), len(differences)
    means = sorted(sum(random.choices(differences, k=count)) / count for _ in range(RESAMPLES))
    cut = (1 - confidence) / 2
    return means[math.floor(cut * (RESAMPLES - 1))], means[math.ceil((1 - cut) * (RESAMPLES - 1))]
