"""The memory that keys and values live in, in blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.store_kv import store_kv


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token needs in the cache."""

    layers: int
    kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * block_size * dtype.itemsize


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer's part of the cache."""

    keys: Tensor
    """[blocks + 1, kv_heads, block_size, head_dim]"""
    values: Tensor
    """As ``keys``."""

    def store(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """``keys``, ``values`` [tokens, kv_heads, head_dim]; ``slots`` int64 [tokens]: where they go."""
        store_kv(keys, values, self.keys, self.values, slots)


class KVCache:
    """``layers`` holds the keys and values of each layer.

    The one block more is never handed out: block tables are padded with it, and it stays zero, so that what is
    read past a sequence's end is finite and nobody's.
    """

    def __init__(
        self, shape: KVShape, blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.padding_block = blocks
        size = (blocks + 1, shape.kv_heads, block_size, shape.head_dim)
        self.layers = [
            KVLayer(_zeros(size, device, dtype), _zeros(size, device, dtype)) for _ in range(shape.layers)
        ]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks: (from, to), in order."""
        for source, target in pairs:
            for layer in self.layers:
                layer.keys[target] = layer.keys[source]
                layer.values[target] = layer.values[source]


def _zeros(size: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # torch writes its zeros; these come from the kernel, and take memory only once a block is used.
    count = math.prod(size) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(size)
