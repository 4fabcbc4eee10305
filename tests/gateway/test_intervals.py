"""Wilson's interval beside values of the literature."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.intervals import wilson
from tests.examples import examples


def test_wilson_of_known_values() -> None:
    # Newcombe 1998, method 3: 81 of 263 and 15 of 148, 95 %.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 20, 0.95) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(0, 0, 0.95) == (0.0, 1.0)


@settings(max_examples=examples(200))
@given(st.floats(0, 1), st.integers(1, 10**9), st.floats(0.5, 0.999))
def test_an_interval_holds_its_mean_and_stays_within_shares(
    mean: float, count: int, confidence: float
) -> None:
    low, high = wilson(mean, count, confidence)
    assert 0 <= low <= mean <= high <= 1
