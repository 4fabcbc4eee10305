"""Attention in C, on a CPU: keys and values are stored in panels, and one call computes all sequences of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.allocation import zeros
from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata, CommonAttentionMetadata
from kernels.move_kv import move_packed_kv
from kernels.native.attention import PagedSequences, packed_attention, packed_shapes, packed_store


class NativeBackend:
    """Available where ``kernels.native.attention.packs``; the layout is described there."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype

    def allocate(self, blocks: int, kv_heads: int, block_size: int, head_dim: int) -> KVLayer:
        sizes = packed_shapes(blocks, kv_heads, block_size, head_dim, self._dtype)
        return KVLayer(self, *(zeros(size, self._device, self._dtype) for size in sizes))

    def padded_length(self, length: int) -> int:
        return 0

    def metadata(self, batch: CommonAttentionMetadata) -> AttentionMetadata:
        sequences = PagedSequences(batch.block_tables, batch.query_starts, batch.seq_lens, batch.tree)
        return AttentionMetadata(batch.slots, sequences=sequences)

    def store(self, cache: KVLayer, keys: Tensor, values: Tensor, batch: AttentionMetadata) -> None:
        packed_store(keys, values, cache.keys, cache.values, batch.slots)

    def move(self, cache: KVLayer, sources: Tensor, targets: Tensor) -> None:
        move_packed_kv(cache.keys, cache.values, sources, targets)

    def forward(
        self,
        query: Tensor,
        cache: KVLayer,
        batch: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if batch.sequences is None:
            raise ValueError("the metadata was built by another backend: attention in C needs its sequences")
        return packed_attention(
            query, cache.keys, cache.values, batch.sequences, scale, window, softcap, sinks
        )
