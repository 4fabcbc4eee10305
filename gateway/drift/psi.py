"""The population stability index of an hour against the same hour of earlier weeks.

``PSI = Σ (p - q) ln(p / q)`` over bins, with ``p`` the hour's shares and ``q`` the reference's. To second order it is
``Σ (p - q)² / q``, so that for ``n`` and ``N`` values of one distribution ``n N / (n + N) · PSI`` is a chi-square
variable with one degree of freedom less than there are bins (Yurdakul and Naranjo, Statistical Properties of the
Population Stability Index, 2020). Its mean is not 0 but ``(bins - 1) (1/n + 1/N)``: the bias that small samples have,
which is taken off where it is told, and which a fixed bar such as 0.1 would mistake for drift at some hundred
requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gateway.drift.hour_sketch import Bins
from gateway.drift.measures import Kind

MOST_BINS = 10
LEAST_EXPECTED = 5.0
"""Values of the hour that a bin of names has in the mean; smaller ones are counted together."""


class Psi(NamedTuple):
    value: float
    """Without its bias; it may be below 0."""
    statistic: float
    """Like chi-square with ``freedom``, where nothing has changed and requests are independent."""
    freedom: int
    weight: float
    """By which the statistic grows with what is more than chance: ``n N / (n + N)``."""


def psi(kind: Kind, now: Bins, before: Bins) -> Psi | None:
    """None where there is one bin only."""
    n, many = now.total(), before.total()
    if not n or not many:
        return None
    counts = _by_quantiles(now, before) if kind in ("number", "position") else _by_name(now, before, n / many)
    if len(counts) < 2:
        return None
    # Half a value more in each bin: the logarithm of an empty one is not to decide.
    extra = 0.5
    p = [(here + extra) / (n + extra * len(counts)) for here, _ in counts]
    q = [(there + extra) / (many + extra * len(counts)) for _, there in counts]
    index = sum((a - b) * math.log(a / b) for a, b in zip(p, q, strict=True))
    freedom = len(counts) - 1
    weight = n * many / (n + many)
    return Psi(index - freedom / weight, weight * index, freedom, weight)


def _by_quantiles(now: Bins, before: Bins) -> Sequence[tuple[int, int]]:
    """Counts of both between quantiles of the reference; where one value fills several there are fewer bins."""
    step = before.total() / MOST_BINS
    counts: list[tuple[int, int]] = []
    here = there = past = 0
    edge = step
    for place in sorted(now.keys() | before.keys()):
        here += now[place]
        there += before[place]
        past += before[place]
        if there and past >= edge:
            counts.append((here, there))
            here = there = 0
            edge = (past // step + 1) * step
    if here or there:  # beyond all that was seen before
        last = counts.pop()
        counts.append((last[0] + here, last[1] + there))
    return counts


def _by_name(now: Bins, before: Bins, part: float) -> Sequence[tuple[int, int]]:
    """``part``: how many values of the hour there are for one of the reference."""
    counts: list[tuple[int, int]] = []
    here = there = 0
    for name in sorted(now.keys() | before.keys(), key=lambda one: -before[one]):
        if before[name] * part >= LEAST_EXPECTED or not counts:
            counts.append((now[name], before[name]))
        else:
            here += now[name]
            there += before[name]
    if here or there:
        counts.append((here, there))
    return counts
