"""Attention in Triton kernels: [blocks, kv_heads, block_size, head_dim], contiguous, whatever the cache's dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.allocation import int4_layer, plain_layer
from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata, CommonAttentionMetadata
from kernels.flash_decoding import paged_decode_triton
from kernels.flash_prefill import paged_prefill_triton
from kernels.move_kv import move_kv
from kernels.store_int4_kv import store_int4_kv_triton
from kernels.store_kv import store_kv_triton


class TritonBackend:
    """On a GPU, or in Triton's interpreter."""

    def __init__(self, device: torch.device, dtype: torch.dtype, *, quantized: bool) -> None:
        """``dtype``: the cache's."""
        self._device = device
        self._dtype = dtype
        self._quantized = quantized

    def allocate(self, blocks: int, kv_heads: int, block_size: int, head_dim: int) -> KVLayer:
        size = (blocks, kv_heads, block_size, head_dim)
        if self._dtype == torch.uint8:
            return KVLayer(self, *int4_layer(size, self._device))
        return KVLayer(self, *plain_layer(size, self._device, self._dtype, quantized=self._quantized))

    def padded_length(self, length: int) -> int:
        return 0

    def metadata(self, batch: CommonAttentionMetadata) -> AttentionMetadata:
        return AttentionMetadata(batch.slots, *batch.groups())

    def store(self, cache: KVLayer, keys: Tensor, values: Tensor, batch: AttentionMetadata) -> None:
        key_scales, value_scales = cache.key_scales, cache.value_scales
        if self._dtype == torch.uint8 and key_scales is not None and value_scales is not None:
            store_int4_kv_triton(
                keys, values, cache.keys, cache.values, batch.slots, key_scales, value_scales
            )
            return
        store_kv_triton(keys, values, cache.keys, cache.values, batch.slots, key_scales, value_scales)

    def move(self, cache: KVLayer, sources: Tensor, targets: Tensor) -> None:
        move_kv(cache.tensors, sources, targets)

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
        parts = [
            paged_decode_triton(
                query[group.start : group.stop],
                cache.of(group),
                scale,
                window,
                softcap,
                sinks=sinks,
                tree=group.tree,
            )
            for group in batch.decodes
        ]
        parts += [
            paged_prefill_triton(
                query[group.start : group.stop],
                cache.of(group),
                group.query_starts,
                scale,
                window,
                softcap,
                group.tile,
                sinks,
            )
            for group in batch.prefills
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
