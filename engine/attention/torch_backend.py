"""Attention in plain torch: on a CPU without C, over a quantized cache there, and on a GPU without Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.allocation import int4_layer, plain_layer, zeros
from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata, CommonAttentionMetadata, DecodeGroup
from kernels.move_kv import move_kv
from kernels.paged_bags import paged_bags
from kernels.paged_decode import paged_decode_reference
from kernels.paged_prefill import paged_prefill_reference
from kernels.store_int4_kv import store_int4_kv_reference
from kernels.store_kv import store_kv_reference

_MAX_BAG_TOKENS = 3
"""New tokens of a sequence up to which embedding bags, which read the cache once for each, are faster."""
_PADDED_LENGTHS = (64, 192, 256, 320, 512)
_PADDED_STEP = 256
"""Lengths that decodes on a CPU are padded to; beyond the last one, multiples of ``_PADDED_STEP``. It affects speed
alone."""
_MAX_GATHERED = 2048
"""Padded tokens of a decode group on a CPU: more of them gathered at once would be evicted from its caches before they
are multiplied. In bfloat16, on one thread of a busy machine, eight sequences of 1,024 tokens took 26 ms a layer as one
group, and 7 ms as four."""


class TorchBackend:
    """On a CPU in 16 bits the last two dimensions of keys are swapped: see kernels/paged_bags.py."""

    def __init__(self, device: torch.device, dtype: torch.dtype, *, quantized: bool) -> None:
        """``dtype``: the cache's."""
        self._device = device
        self._dtype = dtype
        self._quantized = quantized
        self._by_dimension = device.type == "cpu" and not quantized and dtype != torch.float32
        self._max_gathered = _MAX_GATHERED if device.type == "cpu" else None

    def allocate(self, blocks: int, kv_heads: int, block_size: int, head_dim: int) -> KVLayer:
        size = (blocks, kv_heads, block_size, head_dim)
        if self._by_dimension:
            keys = zeros((blocks, kv_heads, head_dim, block_size), self._device, self._dtype).transpose(2, 3)
            return KVLayer(self, keys, zeros(size, self._device, self._dtype))
        if self._dtype == torch.uint8:
            return KVLayer(self, *int4_layer(size, self._device))
        return KVLayer(self, *plain_layer(size, self._device, self._dtype, quantized=self._quantized))

    def padded_length(self, length: int) -> int:
        if self._device.type != "cpu":
            return 0
        steps = (step for step in _PADDED_LENGTHS if length <= step)
        return next(steps, -(-length // _PADDED_STEP) * _PADDED_STEP)

    def metadata(self, batch: CommonAttentionMetadata) -> AttentionMetadata:
        decodes, prefills = batch.groups(self._max_gathered)
        return AttentionMetadata(batch.slots, decodes, prefills, batch.block_offsets)

    def store(self, cache: KVLayer, keys: Tensor, values: Tensor, batch: AttentionMetadata) -> None:
        key_scales, value_scales = cache.key_scales, cache.value_scales
        if self._dtype == torch.uint8 and key_scales is not None and value_scales is not None:
            store_int4_kv_reference(
                keys, values, cache.keys, cache.values, batch.slots, key_scales, value_scales
            )
            return
        store_kv_reference(
            keys, values, cache.keys, cache.values, batch.slots, key_scales, value_scales, batch.block_offsets
        )

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
        parts = [self._decode(query, group, cache, scale, window, softcap, sinks) for group in batch.decodes]
        parts += [
            paged_prefill_reference(
                query[group.start : group.stop],
                cache.of(group, keys_by_dimension=self._by_dimension),
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

    def _decode(
        self,
        query: Tensor,
        group: DecodeGroup,
        cache: KVLayer,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        query = query[group.start : group.stop]
        kv = cache.of(group, keys_by_dimension=self._by_dimension)
        if self._by_dimension and group.new <= _MAX_BAG_TOKENS and group.tree is None:
            bags = group.bags(query.shape[1], kv.keys.shape, window)
            return paged_bags(query, kv, bags, scale, softcap, sinks)
        index = group.gather_index(kv.keys.shape[1], kv.keys.shape[2], window)
        return paged_decode_reference(query, kv, scale, window, softcap, index, sinks)
