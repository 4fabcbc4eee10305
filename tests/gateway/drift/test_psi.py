"""PSI: its bias in small samples, and how it is distributed where nothing changed."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from statistics import fmean

import pytest

from gateway.drift.psi import MOST_BINS, psi


def numbers(draw: Random, count: int, mean: float = 0.0) -> Counter[int]:
    return Counter(round(draw.gauss(mean, 1.0) * 30) for _ in range(count))


def test_it_is_the_formula_without_its_bias() -> None:
    now, before = Counter({1: 300, 0: 700}), Counter({1: 2000, 0: 8000})
    p, q = 300.5 / 1001, 2000.5 / 10001
    value = (p - q) * math.log(p / q) + (q - p) * math.log((1 - p) / (1 - q))
    found = psi("share", now, before)
    assert found is not None and found.freedom == 1
    assert found.value == pytest.approx(value - (1 / 1000 + 1 / 10_000))
    assert found.statistic == pytest.approx(1000 * 10_000 / 11_000 * value)


def test_without_a_change_it_is_zero_in_the_mean_however_few_there_are() -> None:
    draw = Random(1)
    found = [psi("number", numbers(draw, 100), numbers(draw, 400)) for _ in range(400)]
    values = [one for one in found if one is not None]
    assert {one.freedom for one in values} == {MOST_BINS - 1}
    assert abs(fmean(one.value for one in values)) < 0.01  # with its bias it would be 0.11
    assert fmean(one.statistic for one in values) == pytest.approx(9, rel=0.1)


def test_a_change_shows() -> None:
    draw = Random(2)
    found = psi("number", numbers(draw, 1000, mean=0.5), numbers(draw, 4000))
    assert found is not None
    assert found.value == pytest.approx(0.25, abs=0.08)  # of normal distributions the square of the shift
    assert found.statistic > 100


def test_what_was_never_seen_before_counts() -> None:
    now, before = Counter({5: 100, 900: 100}), Counter(dict.fromkeys(range(10), 100))
    found = psi("number", now, before)
    assert found is not None and found.value > 0.5


def test_one_value_that_fills_several_quantiles_is_one_bin() -> None:
    before = Counter({1: 800, 2: 100, 3: 100})
    found = psi("number", Counter({1: 80, 2: 10, 3: 10}), before)
    assert found is not None and found.freedom == 2


def test_rare_names_are_counted_together() -> None:
    before = Counter({"en": 900, "de": 80} | {f"rare-{number}": 1 for number in range(20)})
    found = psi("kind", Counter({"en": 90, "de": 8, "rare-1": 1, "new": 1}), before)
    assert found is not None and found.freedom == 2


@pytest.mark.parametrize(
    ("now", "before"), [({}, {1: 5}), ({1: 5}, {}), ({1: 5}, {1: 5})], ids=["now", "before", "one"]
)
def test_where_there_is_nothing_to_compare(now: dict[int, int], before: dict[int, int]) -> None:
    assert psi("number", Counter(now), Counter(before)) is None
