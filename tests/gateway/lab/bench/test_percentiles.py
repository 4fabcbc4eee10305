from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.lab.bench.percentiles import described, percentile

values = st.lists(st.floats(-1e9, 1e9), min_size=1)


@given(values, st.floats(0, 100), st.floats(0, 100))
def test_percentiles_rise_and_stay_among_the_values(found: list[float], one: float, other: float) -> None:
    ordered = sorted(found)
    low, high = (percentile(ordered, percent) for percent in sorted((one, other)))
    assert ordered[0] <= low <= high or low == pytest.approx(high)
    assert high <= ordered[-1]
    assert percentile(ordered, 0) == ordered[0] and percentile(ordered, 100) == ordered[-1]


@given(st.lists(st.floats(-1e9, 1e9), min_size=2))
def test_percentiles_are_the_inclusive_ones_of_the_standard_library(found: list[float]) -> None:
    cuts = statistics.quantiles(found, n=100, method="inclusive")
    assert [percentile(sorted(found), percent) for percent in range(1, 100)] == pytest.approx(cuts, abs=1e-3)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_what_is_described_is_in_milliseconds(found: list[float]) -> None:
    told = described(found)
    assert told is not None and told["count"] == len(found)
    assert told["mean"] == pytest.approx(1000 * statistics.fmean(found))
    assert told["std"] == pytest.approx(1000 * statistics.pstdev(found), rel=1e-3, abs=1e-3)
    assert (told["min"], told["max"]) == (1000 * min(found), 1000 * max(found))


def test_nothing_is_described_as_nothing() -> None:
    assert described([]) is None
