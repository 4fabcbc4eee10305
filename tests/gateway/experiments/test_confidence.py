"""Intervals over users, and the shares of arms. ``python -m benchmarks.experiments`` has how often they err."""

from __future__ import annotations

import math
import random

import pytest

from gateway.experiments.confidence import LEAST, TIGHTEST, Sums, half_width, of_difference, of_mean
from gateway.experiments.sample_ratio import chi_squared, is_mismatch


def sums(*users: tuple[float, float]) -> Sums:
    """Of each user how many requests, and their sum."""
    return Sums(
        len(users),
        sum(n for n, _ in users),
        sum(x for _, x in users),
        sum(n * n for n, _ in users),
        sum(x * x for _, x in users),
        sum(n * x for n, x in users),
    )


def test_users_count_not_their_requests() -> None:
    draw = random.Random(1)
    few = [(1.0, float(draw.random() < 0.5)) for _ in range(200)]
    many = [(100.0, 100.0 * x) for _, x in few]
    one, hundred = (of_mean(sums(*users), 0.05, of_share=True) for users in (few, many))
    assert one is not None and hundred is not None
    assert hundred.high - hundred.low == pytest.approx(one.high - one.low, rel=0.02), (
        "they say the same again"
    )
    assert sums(*many).users == pytest.approx(200)
    heavy = sums((10_000.0, 5000.0), *[(1.0, 0.0)] * 1000)
    assert heavy.users < 2 and of_mean(heavy, 0.05, of_share=True) is None, "one user is not many"


def test_the_variance_is_that_of_a_ratio() -> None:
    """Against a direct computation, over users with unequal numbers of requests."""
    draw = random.Random(2)
    users = [
        (float(n), float(sum(draw.gauss(3, 1) for _ in range(n))))
        for n in (draw.randrange(1, 9) for _ in range(300))
    ]
    found = sums(*users)
    assert found.mean is not None
    mean_count = found.count / len(users)
    residuals = [(x - found.mean * n) / mean_count for n, x in users]
    direct = sum(one**2 for one in residuals) / (len(users) - 1) / len(users)
    assert found.variance(of_share=False) == pytest.approx(direct)


def test_no_event_is_not_certainty() -> None:
    nothing = sums(*[(1.0, 0.0)] * 200)
    interval = of_mean(nothing, 0.05, of_share=True)
    assert interval is not None and interval.low == 0 and 0.005 < interval.high < 0.1


def test_it_is_wider_than_for_one_look_and_tightest_where_it_says() -> None:
    def ratio(users: float) -> float:
        return half_width(1 / users, users, 0.05) * math.sqrt(users)

    assert ratio(TIGHTEST) == pytest.approx(3.0, abs=0.1), "1.96 for one look"
    assert ratio(TIGHTEST) < ratio(TIGHTEST / 20) and ratio(TIGHTEST) < ratio(TIGHTEST * 50)
    assert half_width(1.0, TIGHTEST, 0.01) > half_width(1.0, TIGHTEST, 0.05)


def test_a_difference_is_found_and_not_before_there_are_enough() -> None:
    def arm(rate: float, users: int) -> Sums:
        return sums(*[(10.0, 10.0 * rate + (1.0 if one % 2 else -1.0) * rate) for one in range(users)])

    assert of_difference(arm(0.5, LEAST - 1), arm(0.1, 500), 0.05, of_share=True) is None
    found = of_difference(arm(0.5, 500), arm(0.1, 500), 0.05, of_share=True)
    assert found is not None and 0.3 < found.low < 0.4 < found.high < 0.5


def test_arms_that_lose_users_are_noticed_and_chance_is_not() -> None:
    halves = {"a": 1.0, "b": 1.0}
    assert not is_mismatch({}, halves) and not is_mismatch({"a": 40, "b": 30}, halves)
    assert not is_mismatch({"a": 5050, "b": 4950}, halves)
    assert is_mismatch({"a": 5300, "b": 4700}, halves)
    assert is_mismatch({"a": 9200, "b": 800}, {"a": 9.0, "b": 1.0})
    assert chi_squared({"a": 5300, "b": 4700}, halves) == pytest.approx(36.0)
    assert chi_squared({}, halves) == 0.0
    draw = random.Random(3)
    alarms = 0
    for _ in range(100):
        counted = {"a": 0, "b": 0}
        for one in range(2000):
            counted["b" if draw.random() < 0.5 else "a"] += 1
            if one % 40 == 0 and is_mismatch(counted, halves):
                alarms += 1
                break
    assert alarms <= 1
