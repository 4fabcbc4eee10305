"""A few fixed random projections of an embedding: they show that what is asked changes, and too little to tell what.

Signs that a hash gives, so that every process and version has the same (Achlioptas, Database-friendly random
projections, 2003).
"""

from __future__ import annotations

from hashlib import shake_256

import numpy as np

from gateway.sidecar.api import PROJECTED, PROJECTION_STEP
from gateway.sidecar.semantic.alignment import Floats


class Projection:
    def __init__(self) -> None:
        self._signs: dict[int, Floats] = {}
        """By the embedding's dimensions, of shape (8, dimensions)."""

    def of(self, vector: Floats) -> list[int]:
        """In steps, for an embedding of length 1."""
        return [round(float(one) / PROJECTION_STEP) for one in self._of(len(vector)) @ vector]

    def _of(self, dimensions: int) -> Floats:
        signs = self._signs.get(dimensions)
        if signs is None:
            count = PROJECTED * dimensions
            bits = np.unpackbits(np.frombuffer(shake_256(b"tollgate drift").digest(-(-count // 8)), np.uint8))
            signs = (bits[:count].reshape(PROJECTED, dimensions) * 2.0 - 1.0).astype(np.float32) / np.float32(
                np.sqrt(dimensions)
            )
            self._signs[dimensions] = signs
        return signs
