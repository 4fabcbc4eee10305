"""A GGUF file's quantized embedding, mapped from disk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from engine.weights import dequantize
from engine.weights.gguf import GgufTensor

_PIECE = 4096
"""Rows."""


class GgufRows:
    """Rows are the same to the bit as those of the whole matrix dequantized at once."""

    def __init__(self, stored: GgufTensor, dtype: torch.dtype, *, grouped: bool) -> None:
        """``grouped``: the codes are read as ``Int4Weight``."""
        self.shape = (stored.shape[0], stored.shape[1])
        self._stored = stored
        self._dtype = dtype
        self._grouped = grouped

    def __call__(self, ids: Tensor) -> Tensor:
        return self._widened(self._stored.data[ids.numpy()])

    def pieces(self) -> Iterator[Tensor]:
        for start in range(0, self.shape[0], _PIECE):
            yield self._widened(self._stored.data[start : start + _PIECE])

    def _widened(self, data: np.ndarray) -> Tensor:
        rows = GgufTensor(self._stored.type, (len(data), self.shape[1]), data)
        if self._grouped:
            return dequantize.grouped(rows).weight().to(self._dtype)
        return dequantize.plain(rows, self._dtype)
