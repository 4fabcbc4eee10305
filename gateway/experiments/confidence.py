"""Within what bounds a mean, or a difference of two, lies, told as often as one likes while requests keep coming.

Requests of one user resemble each other, and users come with many or few: what is independent is the user, or whatever
keeps an arm. So a mean over requests is the ratio of two sums over users, of their values and of their numbers, with
the variance of that ratio over users (the delta method: Deng, Knoblich and Lu 2018, https://arxiv.org/abs/1803.06336).

An interval that holds at one time holds at no other: who looks at it every day sees it exclude the truth far more often
than it says. These are asymptotic confidence sequences (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024,
https://arxiv.org/abs/2103.06476): at ``n`` users, with a standard error ``s``, the half width is

    s · sqrt(2 (1 + 1/(n ρ²)) log(sqrt(n ρ² + 1) / α))

which all ``n`` from the first on keep together with a probability of ``1 - α``. It is Robbins' normal mixture, as the
mSPRT of A/B tests is (Johari, Pekelis and Walsh 2015, https://arxiv.org/abs/1512.04922). ``ρ`` says where it is
tightest: at ``TIGHTEST`` users. It holds once enough users have come for their means to be normal: ``LEAST``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

TIGHTEST = 2000
"""Users, of both arms together."""
LEAST = 50
"""Users in each arm, before which nothing is told: such as weigh alike, see ``Sums.users``."""
_FEW = 4.0
"""Requests, half of them events, that are added to those of a share before its smallest variance is computed."""


class Interval(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Sums:
    """Of one arm and one metric: over users, of what each has in ``total`` over ``count`` requests."""

    units: int = 0
    """Users with a request of which the metric is known."""
    count: float = 0.0
    total: float = 0.0
    count_squares: float = 0.0
    total_squares: float = 0.0
    products: float = 0.0

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def users(self) -> float:
        """How many would tell as much if all had equally many requests."""
        return self.count**2 / self.count_squares if self.count_squares else 0.0

    def variance(self, *, of_share: bool) -> float:
        """Of the mean. ``of_share``: requests are 0 or 1, and so their mean is no surer than so many of them make it,
        even where all were alike."""
        if self.units < 2 or not self.count:
            return math.inf
        mean = self.total / self.count
        squares = self.total_squares - 2 * mean * self.products + mean**2 * self.count_squares
        found = max(0.0, squares) / self.count**2 * self.units / (self.units - 1)
        if of_share:
            share = (self.total + _FEW / 2) / (self.count + _FEW)
            found = max(found, share * (1 - share) / (self.count + _FEW))
        return found


def half_width(variance: float, users: float, alpha: float) -> float:
    """Of the interval that the mean of so many ``users`` never leaves but with a probability of ``alpha``."""
    if users < 1 or math.isinf(variance):
        return math.inf
    grown = users * _rho_squared(alpha)
    return math.sqrt(variance * 2 * (1 + 1 / grown) * math.log(math.sqrt(grown + 1) / alpha))


def _rho_squared(alpha: float) -> float:
    """By which the width at ``TIGHTEST`` is least, nearly (the paper's appendix on tuning)."""
    wanted = -2 * math.log(alpha)
    return (wanted + math.log(wanted + 1)) / TIGHTEST


def of_mean(sums: Sums, alpha: float, *, of_share: bool) -> Interval | None:
    """None where it is too early."""
    if sums.users < LEAST or sums.mean is None:
        return None
    half = half_width(sums.variance(of_share=of_share), sums.users, alpha)
    low, high = sums.mean - half, sums.mean + half
    return Interval(max(0.0, low), min(1.0, high)) if of_share else Interval(low, high)


def of_difference(new: Sums, control: Sums, alpha: float, *, of_share: bool) -> Interval | None:
    """Of ``new`` less ``control``. None where it is too early."""
    if min(new.users, control.users) < LEAST or new.mean is None or control.mean is None:
        return None
    variance = new.variance(of_share=of_share) + control.variance(of_share=of_share)
    half = half_width(variance, new.users + control.users, alpha)
    difference = new.mean - control.mean
    return Interval(difference - half, difference + half)
