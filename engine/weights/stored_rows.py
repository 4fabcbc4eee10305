"""The interface of an embedding that stays as it is stored: rows are read when they are looked up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor


class StoredRows(Protocol):
    shape: tuple[int, int]

    def __call__(self, ids: Tensor) -> Tensor:
        """int64 [count] → [count, size], in the compute dtype."""
        ...

    def pieces(self) -> Iterator[Tensor]:
        """All rows, some at a time."""
        ...
