"""A block's content as one row of bytes: its part of each layer's tensors, one after the other, in any layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

_STAGED = 32 * 2**20
"""Bytes gathered on a GPU at a time."""

Pairs = Sequence[tuple[int, int]]


class BlockRows(Protocol):
    """Copies rows between the KV cache and ``arena`` uint8 [slots, bytes] in host memory."""

    def save(self, pairs: Pairs) -> None:
        """(block, slot)"""
        ...

    def load(self, pairs: Pairs) -> None:
        """(slot, block)"""
        ...


class HostRows:
    """Of a cache on a CPU. By NumPy: torch's ``index_copy_`` goes there element by element, a hundred times slower."""

    def __init__(self, tensors: Sequence[Tensor], arena: Tensor) -> None:
        self._layers = [_bytes(tensor).numpy() for tensor in tensors]
        self._arena = arena.numpy()

    def save(self, pairs: Pairs) -> None:
        blocks, slots = _columns(pairs)
        for layer, place in self._places():
            self._arena[slots, place] = layer[blocks]

    def load(self, pairs: Pairs) -> None:
        slots, blocks = _columns(pairs)
        for layer, place in self._places():
            layer[blocks] = self._arena[slots, place]

    def _places(self) -> Iterator[tuple[np.ndarray, slice]]:
        start = 0
        for layer in self._layers:
            yield layer, slice(start, start + layer.shape[1])
            start += layer.shape[1]


class DeviceRows:
    """Of a cache on a GPU, and an arena in pinned memory: a copy for each row. What is loaded is launched on the
    current stream, as the next step needs it; what is saved is gathered there, and copied beside the steps by another.
    """

    def __init__(self, tensors: Sequence[Tensor], arena: Tensor) -> None:
        self._layers = [_bytes(tensor) for tensor in tensors]
        self._arena = arena
        self._step = max(1, _STAGED // arena.shape[1])
        self.stream = torch.cuda.Stream(tensors[0].device)
        """That saves."""

    def save(self, pairs: Pairs) -> None:
        for part in self._parts(pairs):
            blocks = self._index(block for block, _ in part)
            rows = torch.cat([layer.index_select(0, blocks) for layer in self._layers], 1)
            # Loads before this may still read the slots.
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                for row, (_, slot) in zip(rows, part, strict=True):
                    self._arena[slot].copy_(row, non_blocking=True)
            rows.record_stream(self.stream)

    def load(self, pairs: Pairs) -> None:
        torch.cuda.current_stream().wait_stream(self.stream)
        sizes = [layer.shape[1] for layer in self._layers]
        for part in self._parts(pairs):
            rows = self._layers[0].new_empty(len(part), self._arena.shape[1])
            for row, (slot, _) in zip(rows, part, strict=True):
                row.copy_(self._arena[slot], non_blocking=True)
            blocks = self._index(block for _, block in part)
            for layer, own in zip(self._layers, rows.split(sizes, 1), strict=True):
                layer.index_copy_(0, blocks, own)

    def _parts(self, pairs: Pairs) -> Iterator[Pairs]:
        for first in range(0, len(pairs), self._step):
            yield pairs[first : first + self._step]

    def _index(self, blocks: Iterator[int]) -> Tensor:
        return torch.tensor(list(blocks), device=self._layers[0].device)


def _bytes(tensor: Tensor) -> Tensor:
    """[blocks, bytes], the tensor's own memory."""
    return tensor.view(len(tensor), -1).view(torch.uint8)


def _columns(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def row_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor[0].numel() * tensor.element_size() for tensor in tensors)
