"""The token embedding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.weights.stored_rows import StoredRows
from kernels.native.calls import look_up


class Embedding:
    """``tokens`` int64 [tokens] → [tokens, hidden]."""

    def __init__(self, rows: Tensor | StoredRows) -> None:
        self._rows = rows

    def __call__(self, tokens: Tensor) -> Tensor:
        if isinstance(self._rows, Tensor):
            return functional.embedding(tokens, self._rows)
        return look_up(self._rows, tokens)

    def weight(self) -> Tensor:
        """All of it [vocab, hidden], in the compute dtype."""
        return self._rows if isinstance(self._rows, Tensor) else torch.cat(list(self._rows.pieces()))
