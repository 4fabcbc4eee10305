"""Decides whether the answer to one question may be given to another: rules that refuse, then a learned score.

The score is the sum of boosted trees over what the words have in common (``alignment.py``) and of small networks over
both sentence embeddings and the same. ``training/verifier.py`` writes them into ``heads/verifier.zip`` (an npz),
with a table that maps an error budget to the score that keeps it out of fold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.sidecar.semantic.alignment import Floats, features
from gateway.sidecar.semantic.question import Question, read
from gateway.sidecar.semantic.rules import refusal

SHIPPED = Path(__file__).parents[1] / "heads" / "verifier.zip"
RADII = (0.6, 0.7, 0.8, 0.9)
DOUBT = "doubt"
"""The reason when no rule refuses, and the score does."""


class Comparison(NamedTuple):
    reason: str | None
    """None: it may be given."""
    confidence: float
    """That one answer serves both, 0 where a rule refused."""


class Verifier:
    """Raises KeyError or ValueError for arrays that are no verifier."""

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        self._idf = arrays["idf"].astype(np.float32)
        self._trees = Trees(arrays)
        self._networks = Networks(arrays)
        self._known = unit(arrays["known"].astype(np.float32))
        # As they were written: 0.1 in float32 is more than the 0.1 of a policy, and would never be kept.
        self._budgets = np.array([float(str(budget)) for budget in arrays["budgets"]])
        self._thresholds = arrays["thresholds"].astype(np.float64)
        self._slope, self._offset = (float(value) for value in arrays["calibration"].astype(np.float64))

    @classmethod
    def load(cls, path: Path = SHIPPED) -> Verifier:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(dict(arrays))

    def threshold(self, budget: float) -> float:
        """The least score whose hits are false in at most ``budget`` of cases. Between the budgets that were measured,
        that of the next smaller one; infinite below the smallest."""
        kept = np.flatnonzero(self._budgets <= budget + 1e-9)
        return float(self._thresholds[kept[-1]]) if len(kept) else math.inf

    def judge(
        self, asked: str, stored: str, asked_vector: Floats, stored_vector: Floats, *, threshold: float
    ) -> Comparison:
        """Whether the answer to ``stored`` serves ``asked``; vectors are sentence embeddings of length 1."""
        if asked == stored:
            return Comparison(None, 1.0)
        reason = refusal(asked, stored)
        if reason is not None:
            return Comparison(reason, 0.0)
        a, b = read(asked), read(stored)
        if a.tokens == b.tokens:
            return Comparison(None, 1.0)
        score = self.score(a, b, asked_vector, stored_vector)
        confidence = 1 / (1 + math.exp(-self._slope * score - self._offset))
        return Comparison(None if score >= threshold else DOUBT, confidence)

    def score(self, a: Question, b: Question, u: Floats, v: Floats) -> float:
        """The same whichever way round the questions stand; larger is more alike."""
        near = crowding(
            np.stack([self._known @ u, self._known @ v])
        )  # a product of two rows takes ten times as long
        row = np.array(
            [*features(a, b, float(u @ v), self._idf), *near.min(axis=0), *near.max(axis=0)], dtype=np.float32
        )
        return self._trees.score(row) + self._networks.score(np.concatenate([pair(u, v), row]))


class Trees:
    """Boosted regression trees, all walked at once."""

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        self._feature = arrays["tree_feature"].astype(np.intp)
        self._threshold = arrays["tree_threshold"].astype(np.float32)
        self._left = arrays["tree_left"].astype(np.intp)
        self._right = arrays["tree_right"].astype(np.intp)
        self._value = arrays["tree_value"].astype(np.float32)
        self._roots = arrays["tree_roots"].astype(np.intp)
        self._depth = int(arrays["tree_depth"])
        self._base = float(arrays["tree_base"])

    def score(self, row: Floats) -> float:
        """Leaves point to themselves, so that short branches may be walked on."""
        node = self._roots
        for _ in range(self._depth):
            right = row[self._feature[node]] > self._threshold[node]
            node = np.where(right, self._right[node], self._left[node])
        return self._base + float(self._value[node].sum())


class Networks:
    """The mean of networks of one hidden layer over ``[|u-v|, u·v, u+v]`` and the trees' row."""

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        self._mean = arrays["net_mean"].astype(np.float32)
        self._scale = arrays["net_scale"].astype(np.float32)
        self._w0 = arrays["net_w0"].astype(np.float32)
        self._b0 = arrays["net_b0"].astype(np.float32)
        self._w1 = arrays["net_w1"].astype(np.float32)
        self._b1 = float(arrays["net_b1"])

    def score(self, row: Floats) -> float:
        hidden = np.maximum(standard(row, self._mean, self._scale) @ self._w0 + self._b0, 0)
        return float(hidden @ self._w1) + self._b1


def crowding(similarities: Floats) -> Floats:
    """For each row, how many of the questions that are much asked lie within each radius. What many have asked in many
    wordings has more paraphrases than what looks as alike and was asked once."""
    counts = [(similarities > radius).sum(axis=-1) for radius in RADII]
    logarithms: Floats = np.log1p(np.stack(counts, axis=-1)).astype(np.float32)
    return logarithms


def unit(rows: Floats) -> Floats:
    scaled: Floats = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return scaled


def pair(u: Floats, v: Floats) -> Floats:
    """What the networks see of two embeddings, or of two rows of them."""
    return np.concatenate([np.abs(u - v), u * v, u + v], axis=-1)


def standard(rows: Floats, mean: Floats, scale: Floats) -> Floats:
    """Centred and scaled; what lies far out is brought near, as counts of words may be anything."""
    near: Floats = np.clip((rows - mean) * scale, -4, 4)
    return near
