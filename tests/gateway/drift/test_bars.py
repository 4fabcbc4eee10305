"""Bars: what they promise about false alarms."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from gateway.drift.bars import ALLOWANCE, Bars, chi_square_above, cusum_height, run_length


@pytest.mark.parametrize(
    ("chance", "freedom", "table"),
    [(0.01, 9, 21.666), (0.001, 5, 20.515), (0.05, 3, 7.815), (0.001, 2, 13.816)],
)
def test_chi_square_is_as_in_tables(chance: float, freedom: int, table: float) -> None:
    assert chi_square_above(chance, freedom) == pytest.approx(table, rel=0.03)


def test_of_one_degree_it_is_never_too_low() -> None:
    assert 10.828 <= chi_square_above(0.001, 1) <= 10.828 * 1.1


def test_the_height_is_that_of_the_run_length() -> None:
    assert run_length(cusum_height(10_000)) == pytest.approx(10_000)


def test_a_sum_of_noise_runs_as_long_as_it_says() -> None:
    draw, height = Random(3), cusum_height(200)

    def run() -> int:
        hours, total = 0, 0.0
        while total <= height:
            total = max(0.0, total + draw.gauss(0, 1) - ALLOWANCE)
            hours += 1
        return hours

    assert fmean(run() for _ in range(400)) == pytest.approx(200, rel=0.15)


def test_more_series_mean_higher_bars() -> None:
    few, many = Bars.of(1.0, 10), Bars.of(1.0, 1000)
    assert few.chance == pytest.approx(100 * many.chance)
    assert many.height > few.height
    assert many.hour(0.0) < few.hour(0.0) < 0.01


def test_hours_that_go_together_count_as_one() -> None:
    bars = Bars.of(1.0, 100)
    assert bars.hour(0.0) == pytest.approx(bars.chance**0.5)
    assert bars.hour(0.9) < bars.hour(0.5) < bars.hour(0.0)
