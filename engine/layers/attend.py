"""Attention over the paged cache for a batch in which some sequences have one new token and others have many."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.kv_cache import KVLayer
from kernels.launch import on_triton
from kernels.native.attention import Sequences, is_packed, packed_attention
from kernels.paged_bags import Bags, by_dimension, paged_bags
from kernels.paged_decode import Reads, paged_decode
from kernels.paged_prefill import TILE, paged_prefill

_FEW = 3
"""Most new tokens of a sequence that are read for one by one."""


@dataclass(slots=True)
class DecodeGroup:
    """Rows ``start`` … ``stop`` of the batch: sequences with ``new`` new tokens each, one or a few."""

    start: int
    stop: int
    block_tables: Tensor
    seq_lens: Tensor
    new: int = 1
    _reads: dict[tuple[int, int, int | None], Reads] = field(default_factory=dict)
    _bags: dict[tuple[int, torch.Size, int | None], Bags] = field(default_factory=dict)

    def reads(self, kv_heads: int, block_size: int, window: int | None) -> Reads:
        """Computed once a step, not once a layer."""
        key = kv_heads, block_size, window
        if key not in self._reads:
            self._reads[key] = Reads.of(self.block_tables, self.seq_lens, self.new, *key)
        return self._reads[key]

    def bags(self, heads: int, cache_shape: torch.Size, window: int | None) -> Bags:
        """As ``reads``."""
        key = heads, cache_shape, window
        if key not in self._bags:
            self._bags[key] = Bags.of(self.block_tables, self.seq_lens, self.new, *key)
        return self._bags[key]


@dataclass(slots=True)
class PrefillGroup:
    """Rows ``start`` … ``stop``: sequences with several new tokens each; ``query_starts`` counts from ``start``."""

    start: int
    stop: int
    block_tables: Tensor
    query_starts: Tensor
    seq_lens: Tensor
    tile: int = TILE


@dataclass(slots=True)
class AttentionInput:
    """What all layers share in one step."""

    slots: Tensor
    """int64 [tokens]: where each token's keys and values go."""
    decodes: list[DecodeGroup]
    prefills: list[PrefillGroup]
    sequences: Sequences | None = None
    """Those of all groups together, for attention in C."""
    places: tuple[Tensor, Tensor] | None = None
    """The slots' blocks and offsets."""


def attend(
    query: Tensor,
    batch: AttentionInput,
    cache: KVLayer,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """``query`` [tokens, heads, head_dim] → the same shape.

    ``window``: a token sees itself and the ``window - 1`` before it. ``softcap``: scores go through
    ``softcap * tanh(score / softcap)`` before they are masked.
    """
    if batch.sequences is not None and is_packed(cache.keys):
        return packed_attention(query, cache.keys, cache.values, batch.sequences, scale, window, softcap)
    parts = [_decode(query, group, cache, scale, window, softcap) for group in batch.decodes]
    parts += [
        paged_prefill(
            query[group.start : group.stop],
            cache.keys,
            cache.values,
            group.block_tables,
            group.query_starts,
            group.seq_lens,
            scale,
            window,
            softcap,
            cache.key_scales,
            cache.value_scales,
            group.tile,
        )
        for group in batch.prefills
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(
    query: Tensor,
    group: DecodeGroup,
    cache: KVLayer,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    query = query[group.start : group.stop]
    keys, values = cache.keys, cache.values
    if group.new <= _FEW and by_dimension(keys):
        bags = group.bags(query.shape[1], keys.shape, window)
        return paged_bags(query, keys, values, bags, len(group.seq_lens), scale, softcap)
    return paged_decode(
        query,
        keys,
        values,
        group.block_tables,
        group.seq_lens,
        scale,
        window,
        softcap,
        cache.key_scales,
        cache.value_scales,
        None if on_triton(query) else group.reads(keys.shape[1], keys.shape[2], window),
    )
