"""A step's batch as attention needs it: which slots tokens are written to, and which rows attend over which blocks.

The runner describes a batch once, as ``CommonAttentionMetadata``; the backend turns that into ``AttentionMetadata``,
which all layers of the step share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.state_batch import StateBatch
from kernels.native.attention import PagedSequences
from kernels.paged_bags import Bags
from kernels.paged_decode import GatherIndex
from kernels.paged_prefill import TILE
from kernels.tree_mask import TreeMask


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """Consecutive sequences that have the same number of new tokens, and are padded to the same length."""

    sequences: int
    new: int
    """New tokens of each: one or a few."""
    blocks: int
    """That each is padded to; 0: as many as ``block_tables`` has columns."""


@dataclass(slots=True)
class CommonAttentionMetadata:
    """The batch of a step, for every backend. Rows are consecutive by sequence: decodes first, then prefills."""

    tokens: int
    slots: Tensor
    """int64 [tokens]: where each token's keys and values are written; negative: nowhere."""
    block_tables: Tensor
    """int64 [sequences, max_blocks]"""
    query_starts: Tensor
    """int64 [sequences + 1]: each sequence's first row, and the end."""
    seq_lens: Tensor
    """int64 [sequences], the new tokens included."""
    block_size: int
    decodes: list[DecodeShape]
    prefill_starts: Tensor | None = None
    """int64 [prefills + 1]: ``query_starts`` of the prefills, counted from their first row; ``None``: no prefills."""
    tile: int = TILE
    """Query positions of a prefill's tile."""
    block_offsets: tuple[Tensor, Tensor] | None = None
    """The slots' blocks and offsets within these, if they were computed on the host."""
    tree: TreeMask | None = None
    """What tokens see of each other where some are branches of a tree of draft tokens; those are decodes."""

    @property
    def only_single_tokens(self) -> bool:
        """Whether every sequence has one new token, as in a plain decode step."""
        return self.prefill_starts is None and all(shape.new == 1 for shape in self.decodes)

    def groups(self, max_gathered: int | None = None) -> tuple[list[DecodeGroup], list[PrefillGroup]]:
        """Decodes by shape, and the prefills as one group. ``max_gathered``: padded tokens of a decode group."""
        decodes, row, token = [], 0, 0
        for shape in self.decodes:
            table = self.block_tables[:, : shape.blocks or self.block_tables.shape[1]]
            end, step = row + shape.sequences, shape.sequences
            if max_gathered is not None:
                step = max(1, max_gathered // (table.shape[1] * self.block_size))
            while row < end:
                rows = slice(row, min(row + step, end))
                stop = token + (rows.stop - row) * shape.new
                tree = self.tree and self.tree.of(slice(token, stop), rows)
                decodes.append(DecodeGroup(token, stop, table[rows], self.seq_lens[rows], shape.new, tree))
                row, token = rows.stop, stop
        if self.prefill_starts is None:
            return decodes, []
        tables, lens = self.block_tables[row:], self.seq_lens[row:]
        return decodes, [PrefillGroup(token, self.tokens, tables, self.prefill_starts, lens, self.tile)]


@dataclass(slots=True)
class DecodeGroup:
    """Rows ``start`` … ``stop`` of the batch: sequences with ``new`` new tokens each, one or a few."""

    start: int
    stop: int
    block_tables: Tensor
    seq_lens: Tensor
    new: int = 1
    tree: TreeMask | None = None
    _indices: dict[tuple[int, int, int | None], GatherIndex] = field(default_factory=dict)
    _bags: dict[tuple[int, torch.Size, int | None], Bags] = field(default_factory=dict)

    def gather_index(self, kv_heads: int, block_size: int, window: int | None) -> GatherIndex:
        """Computed once a step, not once a layer."""
        key = kv_heads, block_size, window
        if key not in self._indices:
            self._indices[key] = GatherIndex.of(self.block_tables, self.seq_lens, self.new, *key, self.tree)
        return self._indices[key]

    def bags(self, heads: int, cache_shape: torch.Size, window: int | None) -> Bags:
        """Computed once a step, not once a layer."""
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
    """What all layers of a group share in one step; a backend fills in what it reads."""

    slots: Tensor
    """int64 [tokens]: where each token's keys and values are written."""
    decodes: list[DecodeGroup] = field(default_factory=list)
    prefills: list[PrefillGroup] = field(default_factory=list)
    block_offsets: tuple[Tensor, Tensor] | None = None
    """The slots' blocks, and offsets within these."""
    sequences: PagedSequences | None = None
    """All sequences of the batch, for attention in C."""
    others: list[AttentionMetadata] = field(default_factory=list)
    """The batch as the other groups of layers have it, where there are several: in other blocks."""
    in_chunks: dict[int, AttentionMetadata] = field(default_factory=dict)
    """The batch as layers have it that attend in chunks of the context, by their size."""
    states: StateBatch | None = None
    """The batch as layers with a state have it, where there are some."""
