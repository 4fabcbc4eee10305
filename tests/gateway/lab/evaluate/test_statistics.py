"""Intervals and tests beside values of the literature, and how often they are wrong."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.lab.evaluate.statistics import Pairs, bootstrap, difference_bound, mcnemar
from gateway.lab.evaluate.summary import detectable
from tests.examples import examples


def test_mcnemars_mid_p_of_the_papers_example() -> None:
    # Fagerland, Lydersen, Laake 2013, table 1: 1 and 7 of 21 pairs; exact 0.070, mid-p 0.039.
    assert mcnemar(Pairs(both=1, gained=7, lost=1, neither=12)) == pytest.approx(0.039, abs=5e-4)
    assert mcnemar(Pairs(both=1, gained=1, lost=7, neither=12)) == pytest.approx(0.039, abs=5e-4)


def test_models_that_no_case_tells_apart() -> None:
    same = Pairs(both=90, gained=0, lost=0, neither=10)
    assert (mcnemar(same), same.difference) == (1.0, 0.0)
    assert difference_bound(same, 0.95) > 0


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=60), st.integers(0, 9))
def test_a_bootstrap_holds_its_mean_and_repeats_itself(differences: list[float], seed: int) -> None:
    low, high = bootstrap(differences, 0.95, seed=seed)
    assert min(differences) <= low <= high <= max(differences)
    assert (low, high) == bootstrap(differences, 0.95, seed=seed)
    mean = sum(differences) / len(differences)
    assert low - 1e-9 <= mean <= high + 1e-9 or len(set(differences)) > 1


def alarms(wrong: tuple[float, float], cases: int, runs: int, seed: int) -> int:
    """Of ``runs`` evaluations of models that err so often, each on its own."""
    random = Random(seed)

    def run() -> bool:
        old, new = ([random.random() >= share for _ in range(cases)] for share in wrong)
        split: Callable[[bool, bool], int] = lambda one, other: sum(  # noqa: E731
            a is one and b is other for a, b in zip(old, new, strict=True)
        )
        pairs = Pairs(split(True, True), split(False, True), split(True, False), split(False, False))
        return difference_bound(pairs, 0.95) < 0

    return sum(run() for _ in range(runs))


def test_two_models_that_err_alike_are_told_apart_in_one_of_twenty_evaluations() -> None:
    assert alarms((0.05, 0.05), 840, 400, seed=1) <= 28  # the benchmark runs 1,000 of each


def test_one_that_errs_in_eight_of_a_hundred_is_found_beside_five() -> None:
    assert alarms((0.05, 0.08), 840, 200, seed=2) >= 145
    pairs = Pairs(both=734, gained=64, lost=39, neither=3)
    assert detectable(pairs, 0.95) == pytest.approx(0.03, abs=0.001)
