"""The cost and quality of escalating by confidence."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.confidence import mean_logprob, mixed, threshold_for
from engine.core.logprobs import TokenLogprobs

SMALL = np.array([True, True, False, False])
LARGE = np.array([True, True, True, False])
CONFIDENCE = np.array([-0.1, -0.2, -0.9, -0.8])


@pytest.mark.parametrize(("kept", "right"), [(0.0, 0.75), (0.5, 0.75), (0.75, 0.75), (1.0, 0.5)])
def test_the_most_confident_answers_are_kept(kept: float, right: float) -> None:
    assert mixed(SMALL, LARGE, CONFIDENCE, kept) == right


@pytest.mark.parametrize(("quality", "bar"), [(1.0, -0.8), (0.6, -0.9), (1.1, 0.0)])
def test_the_threshold_keeps_the_quality(quality: float, bar: float) -> None:
    assert threshold_for(quality, SMALL, LARGE, CONFIDENCE) == bar


def test_the_mean_is_the_gateways() -> None:
    tokens = [TokenLogprobs(1, -0.5, []), TokenLogprobs(2, -0.25, []), TokenLogprobs(3, 0.0, [])]
    assert mean_logprob(tokens) == pytest.approx(-0.25)
