"""Attention in C, on a CPU: keys and values lie in panels, and all sequences of a batch are one call."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.allocation import zeros
from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata
from kernels.native.attention import packed_attention, packed_shapes, packed_store


class NativeBackend:
    """Only where ``kernels.native.attention.packs``, which has the layout too."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype

    def allocate(self, blocks: int, kv_heads: int, block_size: int, head_dim: int) -> KVLayer:
        sizes = packed_shapes(blocks, kv_heads, block_size, head_dim, self._dtype)
        return KVLayer(self, *(zeros(size, self._device, self._dtype) for size in sizes))

    def store(
        self,
        cache: KVLayer,
        keys: Tensor,
        values: Tensor,
        slots: Tensor,
        places: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        packed_store(keys, values, cache.keys, cache.values, slots)

    def forward(
        self,
        query: Tensor,
        cache: KVLayer,
        batch: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        if batch.sequences is None:
            raise ValueError("attention in C goes by the batch's sequences, and there are none")
        return packed_attention(query, cache.keys, cache.values, batch.sequences, scale, window, softcap)
