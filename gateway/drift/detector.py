"""Whether a measure of a model and route has drifted in an hour: the hour, the same hour of earlier weeks, and what is
known of the measure so far come in; what is known from then on, and a drift that begins or ends, go out.

Two tests, each for what the other is slow at: PSI for another distribution from one hour to the next, CUSUM of the mean
for a small or growing change. Real traffic is not independent draws, so both are held against how much the measure
usually differs from its reference: by how much more than by chance, and mean, variance and correlation of successive
hours of PSI's statistic and of the standardised mean (``moments``), of values that are clipped.

PSI's statistic is taken for a scaled chi-square variable, ``a χ²(ν)``, with the mean and variance that it has (Welch
and Satterthwaite). Where hours differ in their mean alone, as whole hours do that are busier with one thing, ``ν`` is
near 1 however many bins there are, and the tail long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Self

from gateway.drift.bars import ALLOWANCE, IN_A_ROW, Bars, chi_square_above
from gateway.drift.hour_sketch import Bins
from gateway.drift.measures import Kind
from gateway.drift.moments import Excess, Moments, sum_scale
from gateway.drift.psi import Psi, psi

OVER_AFTER = 24
"""Judged hours without evidence after which a drift is over."""
CLIPPED = 4.0
"""Standard deviations that one hour adds to a CUSUM's sum at most."""
_MOST_NOISE, _MOST_OFF = 8.0, 3.0
"""How much of an hour goes into what is usual: times the usual statistic of PSI, standard deviations of a mean."""


@dataclass(slots=True)
class Usual:
    """What is known of a measure: one per model, route and measure."""

    more_noise: Excess = field(default_factory=Excess)
    """Of PSI's statistic for a degree of freedom."""
    noise: Moments = field(default_factory=lambda: Moments([1.0, 3.0, 1.0]))
    """Of that by its usual mean, from the second week on."""
    more_off: Excess = field(default_factory=Excess)
    """Of the square of the standardised mean."""
    off: Moments = field(default_factory=lambda: Moments([0.0, 1.0, 0.0]))
    """Of the standardised mean by its usual deviation, from the second week on."""
    up: float = 0.0
    down: float = 0.0
    """The CUSUM's sums, in standard deviations."""
    over: int = 0
    """Hours in a row that counted by PSI."""
    quiet: int = 0
    """Hours in a row without evidence, while a drift is open."""
    since: int = 0
    """The hour in which the open drift was found (Unix time); 0 where none is."""
    why: str = ""
    """By which of both: ``psi`` or ``cusum``."""

    @property
    def is_settled(self) -> bool:
        """What is usual is known well enough to tell of drifts."""
        return max(self.noise.weeks, self.off.weeks) > 0

    def to_json(self) -> dict[str, Any]:
        return {
            "noise": [self.more_noise.to_json(), self.noise.to_json()],
            "off": [self.more_off.to_json(), self.off.to_json()],
            "sums": [round(self.up, 3), round(self.down, 3)],
            "hours": [self.over, self.quiet, self.since],
            "why": self.why,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        noise, off = (
            (Excess.from_json(content[name][0]), Moments.from_json(content[name][1]))
            for name in ("noise", "off")
        )
        up, down = map(float, content["sums"])
        over, quiet, since = map(int, content["hours"])
        return cls(*noise, *off, up, down, over, quiet, since, str(content["why"]))


@dataclass(frozen=True, slots=True)
class Judged:
    psi: float
    """Without its bias."""
    z: float
    """How far the mean is off, in standard deviations as they usually are; 0 where there is no mean."""
    change: str = ""
    """``found`` or ``over`` where a drift began or ended in this hour."""


@dataclass(frozen=True, slots=True)
class Least:
    """What is not looked at or told."""

    requests: int
    """Values of an hour; and of its reference twice as many."""
    psi: float
    """Of numbers, positions and kinds; shares may change by much at a small one."""


def judge(
    kind: Kind, hour: int, now: Bins, before: Bins, usual: Usual, bars: Bars, least: Least
) -> Judged | None:
    """None where there is too little to say anything. ``usual`` is changed to what is known from then on."""
    if now.total() < least.requests or before.total() < 2 * least.requests:
        usual.over = 0
        return None
    index, off = psi(kind, now, before), standardised(kind, now, before)
    if index is None and off is None:
        return None
    counts = index is not None and _is_over(kind, index, usual, bars, least)
    usual.over = usual.over + 1 if counts else 0
    scaled = _add(usual, *off, bars) if off is not None else 0.0
    crept = max(usual.up, usual.down) > bars.height
    change = ""
    if usual.since:
        usual.quiet = 0 if counts or crept else usual.quiet + 1
        if usual.quiet >= OVER_AFTER:
            usual.since, usual.why, usual.up, usual.down, change = 0, "", 0.0, 0.0, "over"
    elif not usual.is_settled:
        usual.up = usual.down = 0.0
    elif usual.over >= IN_A_ROW or crept:
        usual.since, usual.quiet, change = hour, 0, "found"
        usual.why = "psi" if usual.over >= IN_A_ROW else "cusum"
    return Judged(index.value if index is not None else 0.0, scaled, change)


def _is_over(kind: Kind, index: Psi, usual: Usual, bars: Bars, least: Least) -> bool:
    """Whether the hour counts by PSI, as it usually is."""
    noise, freedom = usual.noise, index.freedom
    ratio = index.statistic / freedom
    scale = usual.more_noise.mean(index.weight)
    most = _MOST_NOISE * (1.0 + index.weight * usual.more_noise.so_far)
    mean, variance = max(1.0, noise.mean), max(noise.variance, 2 / freedom)
    shape = min(max(2 * mean**2 / variance, 1.0), freedom)
    # The statistics are squares, of which the correlation is that of what is squared, squared.
    correlated = math.sqrt(noise.correlation)
    chance, doubt = bars.hour(correlated), noise.doubt(correlated) ** 2
    if usual.more_noise.weeks:
        noise.add(min(ratio, most) / scale)
    usual.more_noise.add(min(ratio, most), index.weight)
    ratio /= scale
    is_over = ratio > doubt * mean * chi_square_above(chance, shape) / shape
    return is_over and (kind == "share" or index.value >= least.psi)


def standardised(kind: Kind, now: Bins, before: Bins) -> tuple[float, float] | None:
    """The difference of the means, of logarithms where the measure is a number, in standard errors of independent
    draws, and by how much the square of that grows with what is more than chance: one by the square of the standard
    error. None of names, and where all values are one."""
    if kind == "kind":
        return None
    n, many = now.total(), before.total()
    mean, past = _mean(now), _mean(before)
    if kind == "share":
        rate = (now[1] + before[1] + 1) / (n + many + 2)
        variance = rate * (1 - rate)
    else:
        variance = sum(count * (place - past) ** 2 for place, count in before.items()) / many
    if not variance:
        return None
    weight = 1 / (variance * (1 / n + 1 / many))
    return (mean - past) * math.sqrt(weight), weight


def _mean(bins: Bins) -> float:
    return float(sum(place * count for place, count in bins.items()) / bins.total())


def _add(usual: Usual, z: float, weight: float, bars: Bars) -> float:
    """To the sums. Returns ``z`` in what are standard deviations of this measure's hours."""
    most = _MOST_OFF * math.sqrt(1.0 + weight * usual.more_off.so_far)
    clipped = min(max(z, -most), most)
    deviation = math.sqrt(usual.more_off.mean(weight))
    scaled = z / deviation / sum_scale(usual.off)
    if usual.more_off.weeks:
        usual.off.add(clipped / deviation)
    usual.more_off.add(clipped**2, weight)
    step = min(max(scaled, -CLIPPED), CLIPPED)
    # A sum that is over the bar drains again within some days once the mean is as usual.
    top = 1.5 * bars.height
    usual.up = min(max(0.0, usual.up + step - ALLOWANCE), top)
    usual.down = min(max(0.0, usual.down - step - ALLOWANCE), top)
    return scaled
