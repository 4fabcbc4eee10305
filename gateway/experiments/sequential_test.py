"""Whether something happens more often in one arm than in the other, decided while it is being watched.

A mixture sequential probability ratio test (Robbins 1970; Johari, Pekelis and Walsh 2015,
https://arxiv.org/abs/1512.04922) on counts that come in blocks. Of a block with ``n`` requests in the new arm and ``m``
in the control, and ``e`` events in both together, the number ``k`` of events in the new arm has, whatever the rate at
that time is, Fisher's noncentral hypergeometric distribution

    P(k | e; ω) = C(n, k) C(m, e - k) ω^k / Σ_i C(n, i) C(m, e - i) ω^i

where ``ω`` is the ratio of the arms' odds. The likelihood ratio of ``ω = tolerated · θ`` to ``ω = tolerated`` is
multiplied over the blocks, and averaged over the alternatives ``ODDS``. Where ``ω <= tolerated`` the expectation of
that average is at most 1 after every block, so the probability that it ever reaches ``1/α`` is at most ``α`` (Ville):
one may look at it as often as one likes. Since the rate cancels out of each block, hours of the day and shares that
grow do no harm. The end of a block must not depend on the events in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

ODDS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Alternatives to what is tolerated, with equal weights."""


class Rate(NamedTuple):
    events: int
    requests: int


def log_ratios(new: Rate, control: Rate, tolerated: float = 1.0) -> tuple[float, ...]:
    """The logarithms of one block's likelihood ratios, one for each of ``ODDS``."""
    total = new.events + control.events
    ways = range(max(0, total - control.requests), min(total, new.requests) + 1)
    if len(ways) < 2:
        return (0.0,) * len(ODDS)
    weights = [_log_choose(new.requests, k) + _log_choose(control.requests, total - k) for k in ways]

    def log_sum(log_odds: float) -> float:
        terms = [weight + k * log_odds for weight, k in zip(weights, ways, strict=True)]
        most = max(terms)
        return most + math.log(sum(math.exp(term - most) for term in terms))

    null = math.log(tolerated)
    reference = log_sum(null)
    return tuple(new.events * math.log(odds) - log_sum(null + math.log(odds)) + reference for odds in ODDS)


def log_evidence(sums: Sequence[float]) -> float:
    """Of the mixture, by the sums of ``log_ratios`` over all blocks; 0 is none, ``log(1/α)`` enough."""
    most = max(sums)
    return most + math.log(sum(math.exp(one - most) for one in sums) / len(sums))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
