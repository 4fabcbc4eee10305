"""The memory that keys and values live in, in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.attention.select import select_backend
from engine.errors import StartupError

_STORED = {"auto": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token needs in the cache."""

    layers: int
    kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, dtype: torch.dtype, kv_cache_dtype: str = "auto") -> int:
        """Of all layers, with the scales of a quantized cache. Raises ``StartupError``."""
        stored = stored_dtype(kv_cache_dtype)
        row = self.head_dim * dtype.itemsize if stored is None else self.head_dim + torch.float32.itemsize
        return 2 * self.layers * self.kv_heads * block_size * row


class KVCache:
    """``layers`` holds the keys and values of each layer.

    The one block more is never handed out: block tables are padded with it, and it stays zero, so that what is
    read past a sequence's end is finite. Raises ``StartupError`` for an unknown ``kv_cache_dtype``.
    """

    def __init__(
        self,
        shape: KVShape,
        blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
        kv_cache_dtype: str = "auto",
    ) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.padding_block = blocks
        self.backend = select_backend(device, dtype, stored_dtype(kv_cache_dtype), shape.head_dim, block_size)
        self.layers = [
            self.backend.allocate(blocks + 1, shape.kv_heads, block_size, shape.head_dim)
            for _ in range(shape.layers)
        ]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks: (from, to), in order."""
        for source, target in pairs:
            for layer in self.layers:
                for tensor in layer.tensors:
                    tensor[target].copy_(tensor[source])


def stored_dtype(kv_cache_dtype: str) -> torch.dtype | None:
    """``None`` for ``auto``: the compute dtype. Raises ``StartupError``."""
    if kv_cache_dtype not in _STORED:
        raise StartupError(f"--kv-cache-dtype {kv_cache_dtype} is not one of {', '.join(_STORED)}.")
    return _STORED[kv_cache_dtype]
