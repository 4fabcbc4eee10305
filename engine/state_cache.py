"""The memory that layers' states live in: one slot for each running request, beside the paged KV cache.

Some layers keep a state of a request in place of its keys and values: short convolutions the last few inputs, linear
attention a matrix for each head, into which every token was added. It has the same size after one token as after
100,000, is changed by each token, and nothing is taken back from it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.attention.allocation import zeros
from engine.state_batch import StateBatch

LayerState = tuple[Tensor, ...]
"""A layer's tensors [slots, …], as its ``StateTensor`` say."""


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A part of what a layer keeps of one request."""

    shape: tuple[int, ...]
    exact: bool = False
    """Whether it is in float32 in any compute dtype: sums over all tokens are."""

    def dtype(self, compute: torch.dtype) -> torch.dtype:
        return torch.float32 if self.exact else compute


@dataclass(frozen=True, slots=True)
class StateShape:
    """What one request needs."""

    layers: Mapping[int, tuple[StateTensor, ...]]
    """By the layer's number in the model; those that are left out have keys and values."""

    def slot_bytes(self, dtype: torch.dtype) -> int:
        """Of all layers."""
        return sum(
            math.prod(part.shape) * part.dtype(dtype).itemsize
            for parts in self.layers.values()
            for part in parts
        )


class StateCache:
    def __init__(self, shape: StateShape, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        self.spare = slots
        """A slot beside the ``slots``, which is nobody's: idle rows of recordings have it."""
        self.layers: dict[int, LayerState] = {
            layer: tuple(zeros((slots + 1, *part.shape), device, part.dtype(dtype)) for part in parts)
            for layer, parts in shape.layers.items()
        }

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies slots: (from, to), in order."""
        for source, target in pairs:
            for state in self.layers.values():
                for tensor in state:
                    tensor[target].copy_(tensor[source])

    @contextmanager
    def undone_by(self, error: type[Exception], slots: Tensor) -> Iterator[None]:
        """An ``error`` within leaves the states of ``slots`` [n] as they were."""
        before = [[tensor[slots] for tensor in state] for state in self.layers.values()]
        try:
            yield
        except error:
            for state, kept in zip(self.layers.values(), before, strict=True):
                for tensor, own in zip(state, kept, strict=True):
                    tensor[slots] = own
            raise

    def beside(self, paged: Iterator[tuple[Any, Any]], batch: StateBatch) -> Iterator[tuple[Any, Any]]:
        """All layers of a model: those with a state and ``batch``, the others as ``paged`` has them."""
        number = 0
        for layer in itertools.chain(paged, (None,)):
            while number in self.layers:
                yield self.layers[number], batch
                number += 1
            if layer is not None:
                yield layer
                number += 1
