"""The shipped verifier: what it refuses, what it serves, and how its threshold follows from the budget."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gateway.sidecar.semantic.verifier import SHIPPED, Verifier, standard


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    return Verifier.load()


def test_a_larger_budget_asks_for_less(verifier: Verifier) -> None:
    thresholds = [verifier.threshold(budget) for budget in (0.0, 0.01, 0.05, 0.1, 0.2, 1.0)]
    assert thresholds == sorted(thresholds, reverse=True)
    assert thresholds[0] == math.inf
    assert thresholds[2] < math.inf


def test_rules_refuse_whatever_the_vectors_say(verifier: Verifier) -> None:
    same = np.ones(384, dtype=np.float32) / math.sqrt(384)
    comparison = verifier.judge("What is 2 + 3?", "What is 2 + 4?", same, same, threshold=-math.inf)
    assert comparison == ("number", 0.0)


def test_doubt_is_a_reason(verifier: Verifier) -> None:
    same = np.ones(384, dtype=np.float32) / math.sqrt(384)
    arguments = ("How do I learn to swim?", "How can I learn to swim?", same, same)
    assert verifier.judge(*arguments, threshold=math.inf).reason == "doubt"
    assert verifier.judge(*arguments, threshold=-math.inf).reason is None
    assert 0 < verifier.judge(*arguments, threshold=0).confidence <= 1


def test_the_score_does_not_mind_the_direction(verifier: Verifier) -> None:
    random = np.random.default_rng(0)
    for _ in range(5):
        u, v = random.normal(size=(2, 384)).astype(np.float32)
        u, v = u / np.linalg.norm(u), v / np.linalg.norm(v)
        a, b = "How do I learn to swim fast?", "What is a fast way to learn swimming?"
        one = verifier.judge(a, b, u, v, threshold=0)
        other = verifier.judge(b, a, v, u, threshold=0)
        assert one.confidence == pytest.approx(other.confidence, abs=1e-4)


def test_a_count_far_out_weighs_no_more_than_a_large_one() -> None:
    mean, scale = np.zeros(2, dtype=np.float32), np.ones(2, dtype=np.float32)
    near, far = (np.array([count, 1], dtype=np.float32) for count in (4, 4_000))
    assert standard(near, mean, scale).tolist() == standard(far, mean, scale).tolist() == [4, 1]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_budget_that_was_measured_has_its_own_threshold(kind: type) -> None:
    """0.1 in float32 is more than 0.1: compared as it is, it would act as the next smaller budget."""
    with np.load(SHIPPED, allow_pickle=False) as shipped:
        arrays = dict(shipped)
    arrays["budgets"] = np.array([0.05, 0.06, 0.075, 0.1, 0.15, 0.2, 0.3], dtype=kind)
    arrays["thresholds"] = np.array([7, 6, 5, 4, 3, 2, 1], dtype=kind)
    verifier = Verifier(arrays)
    assert [verifier.threshold(budget) for budget in (0.05, 0.06, 0.075, 0.1, 0.15, 0.2, 0.3)] == [
        7, 6, 5, 4, 3, 2, 1,
    ]  # fmt: skip
    assert verifier.threshold(0.0999) == 5
    assert verifier.threshold(0.04) == math.inf
