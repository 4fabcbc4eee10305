from __future__ import annotations

from random import Random

import pytest

from gateway.admission.prediction_errors import CHANCE, PredictionErrors

KINDS = (("m", "t"), ("m", None))


def test_nothing_is_said_before_enough_is_known() -> None:
    errors = PredictionErrors()
    for _ in range(18):
        errors.learn(KINDS, 10.0, 20.0)
    assert errors.soonest(KINDS, 10.0) == 0.0
    errors.learn(KINDS, 10.0, 20.0)
    assert errors.soonest(KINDS, 10.0) == 20.0
    assert errors.soonest(KINDS, 5.0) == 10.0
    assert errors.soonest((("other", "t"), ("other", None)), 5.0) == 0.0


def test_a_tenant_of_whom_little_is_known_is_taken_for_one_of_all() -> None:
    errors = PredictionErrors()
    for _ in range(40):
        errors.learn((("m", "quick"), ("m", None)), 10.0, 1.0)
    assert errors.soonest((("m", "new"), ("m", None)), 10.0) == 1.0


def test_as_many_are_sooner_as_was_said() -> None:
    """Of exponential lengths, all of which are expected to be the mean."""
    errors, chance, early = PredictionErrors(), Random(1), 0
    for _ in range(4000):
        soonest, took = errors.soonest(KINDS, 1.0), chance.expovariate(1.0)
        early += took < soonest
        errors.learn(KINDS, 1.0, took, soonest=soonest)
    assert early / 4000 == pytest.approx(CHANCE, abs=0.015)


def test_what_is_said_is_corrected_where_the_world_changes() -> None:
    """Ever quicker: what was learned is ever too slow, and every request would be sooner than was said."""
    errors, chance, speed, early = PredictionErrors(), Random(1), 1.0, 0
    for number in range(4000):
        speed *= 0.999
        soonest, took = errors.soonest(KINDS, 1.0), speed * chance.uniform(0.95, 1.05)
        early += number >= 1000 and took < soonest
        errors.learn(KINDS, 1.0, took, soonest=soonest)
    assert early / 3000 < 2 * CHANCE


def test_refusals_come_to_an_end() -> None:
    errors = PredictionErrors()
    for _ in range(30):
        errors.learn(KINDS, 1.0, 9.0)
    refused = 0
    while errors.soonest(KINDS, 1.0) > 5.0:
        errors.doubt(KINDS)
        refused += 1
    assert refused == 12


def test_kinds_are_bounded() -> None:
    errors = PredictionErrors()
    for number in range(2000):
        errors.learn(((number, "t"),), 1.0, 1.0)
    assert len(errors._errors) == 512
