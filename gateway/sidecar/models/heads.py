"""Heads: small classifiers on the embedder's poolings. One forward pass serves them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Head:
    """A logistic or one-hidden-layer classifier, read from an ``.npz`` of arrays ``pools``, ``mean``, ``scale``,
    ``w0``, ``b0``, ``labels`` and, with a hidden layer, ``w1`` and ``b1``."""

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Raises KeyError or ValueError if the arrays are no head."""

        def floats(name: str) -> Floats:
            return np.asarray(arrays[name], dtype=np.float32)

        self.pools = tuple(str(name) for name in arrays["pools"])
        self.labels = tuple(str(name) for name in arrays["labels"])
        self._mean, self._scale = floats("mean"), floats("scale")
        self._layers = [(floats("w0"), floats("b0"))]
        if "w1" in arrays:
            self._layers.append((floats("w1"), floats("b1")))
        width = len(self._mean)
        for weights, bias in self._layers:
            if weights.shape != (width, len(bias)):
                raise ValueError(f"weights of shape {weights.shape} where {(width, len(bias))} was expected")
            width = len(bias)
        if width != len(self.labels):
            raise ValueError(f"{len(self.labels)} labels for {width} outputs")

    @classmethod
    def load(cls, path: Path) -> Head:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(dict(arrays))

    def __call__(self, vectors: Floats) -> Floats:
        """A row of probabilities for each row of concatenated poolings."""
        x = (vectors - self._mean) / self._scale
        for number, (weights, bias) in enumerate(self._layers):
            x = x @ weights + bias
            if number + 1 < len(self._layers):
                x = np.maximum(x, 0)
        scores: Floats = 1 / (1 + np.exp(-np.clip(x, -60, 60)))
        return scores


def vectors(encodings: Sequence[Floats], have: Sequence[str], pools: Sequence[str]) -> Floats:
    """The poolings ``pools`` of each encoding, whose rows are the poolings ``have``. Raises ValueError."""
    rows = [have.index(name) for name in pools]
    return np.stack([encoding[rows].reshape(-1) for encoding in encodings])
