"""Attention in plain torch: on a CPU without C, over a quantized cache there, and on a GPU without Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.allocation import plain_layer, zeros
from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata, DecodeGroup
from kernels.paged_bags import paged_bags
from kernels.paged_decode import paged_decode_reference
from kernels.paged_prefill import paged_prefill_reference
from kernels.store_kv import store_kv_reference

_FEW = 3
"""Most new tokens of a sequence that are read for one by one."""


class TorchBackend:
    """On a CPU in 16 bits the last two dimensions of keys lie the other way round: see kernels/paged_bags.py."""

    def __init__(self, device: torch.device, dtype: torch.dtype, *, quantized: bool) -> None:
        """``dtype``: of the cache."""
        self._device = device
        self._dtype = dtype
        self._quantized = quantized
        self._by_dimension = device.type == "cpu" and not quantized and dtype != torch.float32

    def allocate(self, blocks: int, kv_heads: int, block_size: int, head_dim: int) -> KVLayer:
        size = (blocks, kv_heads, block_size, head_dim)
        if self._by_dimension:
            keys = zeros((blocks, kv_heads, head_dim, block_size), self._device, self._dtype).transpose(2, 3)
            return KVLayer(self, keys, zeros(size, self._device, self._dtype))
        return KVLayer(self, *plain_layer(size, self._device, self._dtype, quantized=self._quantized))

    def store(
        self,
        cache: KVLayer,
        keys: Tensor,
        values: Tensor,
        slots: Tensor,
        places: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        scales = cache.key_scales, cache.value_scales
        store_kv_reference(keys, values, cache.keys, cache.values, slots, *scales, places)

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
        parts = [self._decode(query, group, cache, scale, window, softcap) for group in batch.decodes]
        parts += [
            paged_prefill_reference(
                query[group.start : group.stop],
                cache.of(group, keys_by_dimension=self._by_dimension),
                group.query_starts,
                scale,
                window,
                softcap,
                group.tile,
            )
            for group in batch.prefills
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(
        self,
        query: Tensor,
        group: DecodeGroup,
        cache: KVLayer,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        query = query[group.start : group.stop]
        kv = cache.of(group, keys_by_dimension=self._by_dimension)
        if self._by_dimension and group.new <= _FEW:
            bags = group.bags(query.shape[1], kv.keys.shape, window)
            return paged_bags(query, kv, bags, scale, softcap)
        index = group.gather_index(kv.keys.shape[1], kv.keys.shape[2], window)
        return paged_decode_reference(query, kv, scale, window, softcap, index)
