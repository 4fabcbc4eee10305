"""What the test of two rates promises, shown by numbers that no part of it computed."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.experiments.sequential_test import ODDS, Rate, log_evidence, log_ratios
from tests.examples import examples


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("tolerated", [1.0, 2.0])
def test_where_nothing_is_worse_than_tolerated_each_ratio_expects_at_most_one(
    rate: float, tolerated: float
) -> None:
    """By the sum over all outcomes of a small block; as many times worse as is tolerated it is exactly 1."""
    new_requests, control_requests = 4, 6
    odds = tolerated * rate / (1 - rate)
    expected = [0.0] * len(ODDS)
    for new, control in product(range(new_requests + 1), range(control_requests + 1)):
        chance = _binomial(new, new_requests, odds / (1 + odds)) * _binomial(control, control_requests, rate)
        ratios = log_ratios(Rate(new, new_requests), Rate(control, control_requests), tolerated)
        expected = [sum_ + chance * math.exp(one) for sum_, one in zip(expected, ratios, strict=True)]
    assert expected == pytest.approx([1.0] * len(ODDS))


def _binomial(k: int, n: int, p: float) -> float:
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


@given(new=st.integers(0, 300), control=st.integers(0, 300), events=st.data())
@settings(max_examples=examples(200))
def test_any_counts_give_finite_ratios_that_favour_the_arm_with_more(
    new: int, control: int, events: st.DataObject
) -> None:
    few = events.draw(st.integers(0, new))
    others = events.draw(st.integers(0, control))
    ratios = log_ratios(Rate(few, new), Rate(others, control))
    assert all(map(math.isfinite, ratios))
    if few == 0:
        assert log_evidence(ratios) <= 1e-9
    if others == 0 and few == new and new and control:
        assert log_evidence(ratios) > 0


def test_two_failures_in_a_hundred_are_no_evidence_and_twenty_are() -> None:
    control = Rate(4, 400)
    assert log_evidence(log_ratios(Rate(2, 100), control)) < math.log(20)
    assert log_evidence(log_ratios(Rate(20, 100), control)) > math.log(20)


def test_what_is_tolerated_is_no_evidence() -> None:
    twice = Rate(40, 400), Rate(20, 400)
    assert log_evidence(log_ratios(*twice)) > 0
    assert log_evidence(log_ratios(*twice, tolerated=2.5)) < 0
