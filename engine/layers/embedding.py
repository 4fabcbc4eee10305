"""The token embedding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from engine.parallel.group import TPGroup
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

    @property
    def count(self) -> int:
        return self._rows.shape[0]

    def pieces(self) -> Iterator[Tensor] | None:
        """All of it, some rows at a time, where it is stored in another form."""
        return None if isinstance(self._rows, Tensor) else self._rows.pieces()

    def weight(self) -> Tensor:
        """All of it [vocab, hidden], in the compute dtype."""
        return self._rows if isinstance(self._rows, Tensor) else torch.cat(list(self._rows.pieces()))


class ShardedEmbedding(Embedding):
    """Of which each rank has the rows of as many tokens: what the others do not know is the sum of all."""

    def __init__(self, rows: Tensor, tp: TPGroup) -> None:
        """``rows``: this rank's [vocab / ranks, hidden]."""
        super().__init__(rows)
        self._first = tp.rank * len(rows)
        self._count = len(rows)
        self._tp = tp

    def __call__(self, tokens: Tensor) -> Tensor:
        own = tokens - self._first
        foreign = (own < 0) | (own >= self._count)
        x = super().__call__(own.masked_fill(foreign, 0))
        return self._tp.all_reduce(x.masked_fill_(foreign[:, None], 0))
