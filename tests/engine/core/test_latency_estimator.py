from __future__ import annotations

from random import Random

import pytest

from engine.core.latency_estimator import LatencyEstimator
from engine.core.rate import Rate


def measured(*, slots: int = 4, length: int = 10) -> LatencyEstimator:
    """A prompt token takes 1 ms, a step 100 ms, an answer ``length`` tokens."""
    estimator = LatencyEstimator(slots)
    estimator.observe(1.0, prefill_tokens=1000, decode_tokens=0)
    for _ in range(5):
        estimator.observe(0.1, prefill_tokens=0, decode_tokens=3)
        estimator.finish(length)
    return estimator


def test_what_is_not_known_counts_as_nothing() -> None:
    assert LatencyEstimator(4).estimate(1000, 1000, 50) == 0


def test_an_estimate_is_prefill_then_a_step_for_each_token() -> None:
    assert measured().estimate(500, 1, 0) == pytest.approx(0.5)
    assert measured().estimate(500, 5, 0) == pytest.approx(0.5 + 4 * 0.1)


def test_a_limit_beyond_the_usual_length_is_not_expected_to_be_used() -> None:
    assert measured(length=10).estimate(0, 5000, 0) == pytest.approx(9 * 0.1)


def test_places_fall_free_as_answers_end() -> None:
    """Four slots, a second an answer: one falls free every quarter of a second."""
    assert measured().estimate(0, 1, 8) == pytest.approx(2.0)
    assert measured().estimate(0, 1, -3) == 0


def test_the_mean_length_follows_the_last_answers() -> None:
    estimator = measured(length=10)
    for _ in range(400):
        estimator.finish(100)
    assert estimator.estimate(0, 5000, 0) == pytest.approx(99 * 0.1, rel=0.02)


def test_a_mixed_step_counts_for_both_by_tokens() -> None:
    estimator = LatencyEstimator(1)
    estimator.observe(1.0, prefill_tokens=90, decode_tokens=10)
    estimator.finish(3)
    assert estimator.estimate(100, 1, 0) == pytest.approx(1.0)
    assert estimator.estimate(0, 3, 0) == pytest.approx(2.0)


KIND = LatencyEstimator.kind("acme", 0)


def test_nothing_is_certain_before_enough_is_known() -> None:
    estimator = LatencyEstimator(1)
    for _ in range(18):
        estimator.compare(KIND, 1.0, 5.0)
    assert estimator.soonest(KIND, 1.0) == 0
    estimator.compare(KIND, 1.0, 5.0)
    assert estimator.soonest(KIND, 2.0) == pytest.approx(10.0)


def test_refusals_for_what_is_past_come_to_an_end() -> None:
    estimator = LatencyEstimator(1)
    for _ in range(40):
        estimator.compare(KIND, 1.0, 5.0)
    refused = 0
    while estimator.soonest(KIND, 1.0) > 1.0:
        estimator.doubt(KIND)
        refused += 1
        assert refused < 40
    assert refused == 22


def test_a_tenant_without_answers_is_judged_by_those_of_all() -> None:
    estimator = LatencyEstimator(1)
    for _ in range(20):
        estimator.compare(KIND, 1.0, 5.0)
        estimator.compare(LatencyEstimator.kind("other", 0), 1.0, 3.0)
    assert estimator.soonest(KIND, 1.0) == pytest.approx(5.0)
    assert estimator.soonest(LatencyEstimator.kind("new", 0), 1.0) == pytest.approx(3.0)
    assert estimator.soonest(LatencyEstimator.kind("new", 1), 1.0) == 0


@pytest.mark.parametrize("chance", [0.05, 0.25, 0.5])
def test_as_many_are_done_by_then_as_is_said_whatever_the_distribution(chance: float) -> None:
    rng, estimator, early = Random(1), LatencyEstimator(1), 0
    for number in range(5000):
        estimated = rng.uniform(0.1, 10)
        took = estimated * rng.choice(
            (rng.lognormvariate(0, 1.5), rng.paretovariate(1.1), rng.uniform(0.2, 0.4))
        )
        if number >= 1000:
            early += took < estimator.soonest(KIND, estimated, chance)
        estimator.compare(KIND, estimated, took)
    assert early / 4000 == pytest.approx(chance, abs=0.03)
    assert early / 4000 <= chance + 0.01


def test_tenants_are_remembered_up_to_a_number() -> None:
    estimator = LatencyEstimator(1)
    for number in range(2000):
        estimator.compare(LatencyEstimator.kind(f"tenant {number}", 0), 1.0, 1.0)
    assert len(estimator._errors) <= 512
    assert estimator.soonest(LatencyEstimator.kind("new", 0), 1.0) == 1.0


def test_a_rate_forgets() -> None:
    rate = Rate(memory=1.0)
    assert rate.value == 0
    rate.add(5, 0.0)
    assert rate.value == 0
    rate.add(100, 1.0)
    for _ in range(20):
        rate.add(1, 1.0)
    assert rate.value == pytest.approx(1, rel=0.01)
