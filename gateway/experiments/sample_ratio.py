"""Whether the arms have the shares of users that the policy gives them: if not, something loses some of one arm's.

What is compared then are not the same kinds of users, whatever their figures say (Fabijan et al. 2019, "Diagnosing
Sample Ratio Mismatch in Online Controlled Experiments"). The usual chi-squared test is for one look; this one may be
looked at all the time: the ratio of a Dirichlet mixture of multinomials to the multinomial of the policy's weights
(Lindon and Malek 2022, https://arxiv.org/abs/2011.03567), which reaches ``1/α`` with a probability of at most ``α``
where the shares are right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

FALSE_ALARMS = 0.001
_CONCENTRATION = 100.0
"""Of the alternatives about the policy's shares: within a few per cent of them, mostly."""


def log_evidence(users: Mapping[str, int], weights: Mapping[str, float]) -> float:
    """The logarithm of that ratio, by users of each arm."""
    whole, count = sum(weights.values()), sum(users.values())
    shares = {arm: weight / whole for arm, weight in weights.items()}
    found = math.lgamma(_CONCENTRATION) - math.lgamma(_CONCENTRATION + count)
    for arm, share in shares.items():
        prior, seen = _CONCENTRATION * share, users.get(arm, 0)
        found += math.lgamma(prior + seen) - math.lgamma(prior) - seen * math.log(share)
    return found


def is_mismatch(users: Mapping[str, int], weights: Mapping[str, float]) -> bool:
    return log_evidence(users, weights) >= -math.log(FALSE_ALARMS)


def chi_squared(users: Mapping[str, int], weights: Mapping[str, float]) -> float:
    """Pearson's statistic, for who knows that better: with two arms 10.8 is what one look exceeds once in 1,000."""
    whole, count = sum(weights.values()), sum(users.values())
    expected = {arm: count * weight / whole for arm, weight in weights.items()}
    return sum((users.get(arm, 0) - one) ** 2 / one for arm, one in expected.items()) if count else 0.0
