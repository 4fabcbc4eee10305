"""What attention is told of a batch: where its tokens go, and which rows attend over which blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.native.attention import Sequences
from kernels.paged_bags import Bags
from kernels.paged_decode import GatherIndex
from kernels.paged_prefill import TILE


@dataclass(slots=True)
class DecodeGroup:
    """Rows ``start`` … ``stop`` of the batch: sequences with ``new`` new tokens each, one or a few."""

    start: int
    stop: int
    block_tables: Tensor
    seq_lens: Tensor
    new: int = 1
    _indices: dict[tuple[int, int, int | None], GatherIndex] = field(default_factory=dict)
    _bags: dict[tuple[int, torch.Size, int | None], Bags] = field(default_factory=dict)

    def gather_index(self, kv_heads: int, block_size: int, window: int | None) -> GatherIndex:
        """Computed once a step, not once a layer."""
        key = kv_heads, block_size, window
        if key not in self._indices:
            self._indices[key] = GatherIndex.of(self.block_tables, self.seq_lens, self.new, *key)
        return self._indices[key]

    def bags(self, heads: int, cache_shape: torch.Size, window: int | None) -> Bags:
        """As ``gather_index``."""
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
class AttentionMetadata:
    """What all layers share in one step."""

    slots: Tensor
    """int64 [tokens]: where each token's keys and values go."""
    decodes: list[DecodeGroup]
    prefills: list[PrefillGroup]
    sequences: Sequences | None = None
    """Those of all groups together, for attention in C."""
    places: tuple[Tensor, Tensor] | None = None
    """The slots' blocks and offsets."""
