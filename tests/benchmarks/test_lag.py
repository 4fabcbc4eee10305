"""The percentile of what a workload added to a histogram."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import lag

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, math.inf)


def counted(seconds: list[float]) -> dict[float, float]:
    return {bound: float(sum(one <= bound for one in seconds)) for bound in BOUNDS}


def test_only_what_came_between() -> None:
    earlier = [0.5] * 100
    found = lag.between(counted(earlier), counted(earlier + [0.0005] * 99 + [0.004]))
    assert found == {"lag_p99_ms": pytest.approx(1.0), "lag_met": 1.0}


def test_nothing_between() -> None:
    assert lag.between(counted([0.002]), counted([0.002])) == {"lag_p99_ms": 0.0, "lag_met": 1.0}


def test_more_than_the_last_bound_is_told_as_that_bound() -> None:
    assert lag.between({}, counted([3.0]))["lag_p99_ms"] == pytest.approx(1000.0)


@given(st.lists(st.floats(0, 0.9), min_size=1, max_size=300))
def test_in_the_bucket_of_the_true_one(seconds: list[float]) -> None:
    found = lag.between({}, counted(seconds))
    true = sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]
    upper = min(bound for bound in BOUNDS if true <= bound)
    lower = max((bound for bound in BOUNDS if bound < upper), default=0.0)
    assert lower * 1e3 - 1e-6 <= found["lag_p99_ms"] <= upper * 1e3 + 1e-6
    assert found["lag_met"] == sum(one <= lag.BOUND for one in seconds) / len(seconds)
