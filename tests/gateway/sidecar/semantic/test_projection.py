"""Projections of embeddings: the same everywhere, and as wide as they are said to be."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.sidecar.api import PROJECTED, PROJECTION_STEP
from gateway.sidecar.semantic.projection import Projection


def vectors(count: int, dimensions: int = 384) -> list[np.ndarray]:
    drawn = np.random.default_rng(1).normal(size=(count, dimensions)).astype(np.float32)
    return [one / np.linalg.norm(one) for one in drawn]


def test_every_process_and_version_has_the_same() -> None:
    unit = np.zeros(384, np.float32)
    unit[0] = 1.0
    assert Projection().of(unit) == [-3, -3, 3, 3, 3, 3, -3, -3]


def test_unlike_texts_lie_some_steps_apart() -> None:
    places = np.array([Projection().of(one) for one in vectors(300)])
    assert places.shape == (300, PROJECTED)
    assert places.std(axis=0) == pytest.approx(1 / np.sqrt(384) / PROJECTION_STEP, rel=0.15)


def test_any_length_of_an_embedding_will_do() -> None:
    assert len(Projection().of(vectors(1, 1023)[0])) == PROJECTED
