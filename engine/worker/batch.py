"""A plan as tensors: all new tokens of all requests in one flat batch, without padding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention.metadata import AttentionMetadata, CommonAttentionMetadata, DecodeShape
from engine.core.draft_tree import depths_of
from engine.core.plan import Plan, ScheduledRequest
from engine.core.sampling_row import SamplingRow
from engine.kv_cache import KVCache
from engine.worker.attention_chunks import in_chunks
from engine.worker.block_table import BlockTable
from engine.worker.fed_tokens import FedTokens
from engine.worker.feed import Feed
from engine.worker.state_rows import state_batch
from engine.worker.upload import upload
from kernels.paged_prefill import TILE
from kernels.tree_mask import TreeMask, branches_of

SHORT = 16
"""Tokens of the longest chunk that is attended to like a decode: draft tokens, and the ends of prompts."""
_INVARIANT_TILE = 16
"""Query positions of a tile where results must not depend on the batch: most tiles then hold a single token."""


@dataclass(slots=True)
class Batch:
    tokens: Tensor
    """int64 [tokens]"""
    positions: Tensor
    """int64 [tokens]"""
    common: list[CommonAttentionMetadata]
    """The batch as each group of layers has it."""
    attention: AttentionMetadata
    """What the cache's backend made of these."""
    sampling_rows: list[SamplingRow]
    """A request's rows are adjacent and in order; those of siblings that begin follow."""
    logits_indices: Tensor
    """int64 [len(sampling_rows)]: the row of hidden states that each is sampled from."""
    drawn: list[int]
    """The same."""
    adapters: list[tuple[str, int, int]]
    """Rows by adapter: (adapter, first row, row after its last)."""
    scored: list[tuple[ScheduledRequest, int]]
    """Requests for prompt logprobs, and the row of the first token of each."""
    order: list[ScheduledRequest]
    """The requests as their rows follow one another."""


class BatchBuilder:
    """Lays out a batch: decodes come first, grouped by their number of new tokens and, where the backend pads
    sequences, by padded length; then chunks of prompts.

    ``invariant``: a token's attention must be the same to the last bit in any batch. All tokens are then prefills, in
    tiles whose shape depends on the token's position alone, as libraries choose the order of their sums by shape. One
    new token costs as much as a whole tile.

    ``keeping``: it is given every plan of one scheduler, in their order, or told by ``forget`` that it was not; so it
    writes no more of the block tables than what has changed.
    """

    def __init__(
        self, cache: KVCache, device: torch.device, *, invariant: bool = False, keeping: bool = False
    ) -> None:
        self._backend = cache.backend
        self._stateful = cache.states is not None
        self._windows = [group.window for group in cache.groups]
        self._chunks = cache.chunks
        self._block_size = cache.block_size
        self._table = BlockTable(self._windows, cache.block_size, cache.padding_block, device)
        self._keeping = keeping
        self._pads = self._backend.padded_length(1) > 0
        self._device = device
        self._longest = 0 if invariant else SHORT
        self._tile = _INVARIANT_TILE if invariant else TILE

    def build(self, plan: Plan, feed: Feed | None = None) -> Batch:
        """``feed``: of the step before, where there are ``PENDING`` tokens."""
        if self._keeping:
            self._table.forget(plan.ended)
        else:
            self._table.clear()
        groups: dict[tuple[int, int], list[ScheduledRequest]] = {}
        chunks = []
        for scheduled in plan.requests:
            new = len(scheduled.tokens)
            if scheduled.draft_parents:
                # Only decodes see trees. What a row adds up differs with the tree anyway.
                groups.setdefault((new, self._width(scheduled.end)), []).append(scheduled)
            elif new > self._longest:
                chunks.append(scheduled)
            elif not self._pads:
                groups.setdefault((new, 0), []).append(scheduled)
            elif self._width(scheduled.start + 1) == (width := self._width(scheduled.end)):
                groups.setdefault((new, width), []).append(scheduled)
            else:
                chunks.append(scheduled)
        order = [scheduled for key in sorted(groups) for scheduled in groups[key]] + chunks
        counts = np.array([len(scheduled.tokens) for scheduled in order])
        starts = np.array([scheduled.start for scheduled in order])
        ends = np.cumsum(counts)
        tokens = np.array([token for scheduled in order for token in scheduled.tokens], dtype=np.int64)
        positions = np.arange(len(tokens)) - np.repeat(ends - counts - starts, counts)
        tree = _tree(order, positions)

        seq_lengths = starts + counts
        width = max([-(-int(seq_lengths.max()) // self._block_size), *(width for _, width in groups)])
        owners = np.repeat(np.arange(len(order)), counts)
        inside, offsets = positions // self._block_size, positions % self._block_size
        if tree is not None:
            positions = tree.positions
        rows = self._table.update(order, width, plan.altered)
        placed = []
        for group in range(len(self._windows)):
            blocks = self._table.lookup(group, rows[owners], inside)
            placed += [blocks * self._block_size + offsets, blocks]

        decoded = len(order) - len(chunks)
        bounds = np.concatenate([[0], ends])
        last_rows = ends.tolist()
        sampling_rows, logits_indices = rows_of(order)
        arrays = [tokens, positions, offsets, seq_lengths, bounds]
        arrays += [bounds[decoded:] - bounds[decoded], np.array(logits_indices, dtype=np.int64), rows]
        fed = FedTokens(order, last_rows, feed) if feed is not None else None
        changes = self._table.changes()
        seen = [tree.branches, tree.roots] if tree else []
        told = fed.arrays if fed else []
        uploaded = upload(arrays + placed + changes + seen + told, self._device)
        token_ids, token_positions, token_offsets, seq_lens, query_starts = uploaded[:5]
        prefill_starts, rows_drawn, table_rows = uploaded[5:8]
        placed_tensors = uploaded[8 : 8 + len(placed)]
        end = 8 + len(placed) + len(changes)
        self._table.apply(uploaded[8 + len(placed) : end])
        tables = [self._table.select(group, table_rows, width) for group in range(len(self._windows))]
        if fed:
            told_tensors = uploaded[len(uploaded) - len(told) :]
            fed.fill(told_tensors, token_ids, token_positions, seq_lens)
            for group, table in enumerate(tables):
                slots, blocks_written = placed_tensors[2 * group : 2 * group + 2]
                where = (slots, blocks_written, token_offsets, self._block_size)
                fed.place(told_tensors, token_positions, table, *where)
        common = [
            CommonAttentionMetadata(
                len(tokens),
                placed_tensors[2 * group],
                tables[group],
                query_starts,
                seq_lens,
                self._block_size,
                [DecodeShape(len(groups[new, blocks]), new, blocks) for new, blocks in sorted(groups)],
                prefill_starts if chunks else None,
                self._tile,
                (placed_tensors[2 * group + 1], token_offsets),
                TreeMask(*uploaded[end : end + 2]) if tree else None,
            )
            for group in range(len(self._windows))
        ]
        attention, *others = made = [self._backend.metadata(group) for group in common]
        attention.others = others
        for group, sizes in enumerate(self._chunks):
            for size in sizes:
                part = in_chunks(common[group], starts, counts, size)
                made[group].in_chunks[size] = self._backend.metadata(part)
        if self._stateful:
            attention.states = state_batch(order, self._device)
        return Batch(
            tokens=token_ids,
            positions=token_positions,
            common=common,
            attention=attention,
            sampling_rows=sampling_rows,
            logits_indices=rows_drawn,
            drawn=logits_indices,
            adapters=[
                (scheduled.adapter, end - len(scheduled.tokens), end)
                for scheduled, end in zip(order, last_rows, strict=True)
                if scheduled.adapter is not None
            ],
            scored=[
                (scheduled, end - len(scheduled.tokens))
                for scheduled, end in zip(order, last_rows, strict=True)
                if scheduled.prompt_logprobs is not None
            ],
            order=order,
        )

    def forget(self) -> None:
        """All block tables are written anew: a plan failed, or was not given."""
        self._table.clear()

    def _width(self, length: int) -> int:
        """Blocks that a sequence of ``length`` tokens is padded to; 0: those of the batch's longest."""
        return -(-self._backend.padded_length(length) // self._block_size)


@dataclass(slots=True)
class _Tree:
    """The batch's rows where some of them are a tree's."""

    positions: np.ndarray
    branches: np.ndarray
    roots: np.ndarray


def _tree(order: list[ScheduledRequest], slots: np.ndarray) -> _Tree | None:
    """``slots``: of each row, counted from its sequence's start; elsewhere than in trees they are its position."""
    if not any(scheduled.draft_parents for scheduled in order):
        return None
    found = _Tree(slots.copy(), np.full(len(slots), -1), np.array([scheduled.end for scheduled in order]))
    end = 0
    for number, scheduled in enumerate(order):
        end += len(scheduled.tokens)
        if parents := scheduled.draft_parents:
            root, count = scheduled.end - len(parents), min(len(parents), len(scheduled.tokens))
            found.roots[number] = root
            found.positions[end - count : end] = root + np.array(depths_of(parents)[-count:])
            found.branches[end - count : end] = branches_of(parents)[-count:]
            # What is before the tree sees nothing of it, by its order.
    return found


def rows_of(order: list[ScheduledRequest]) -> tuple[list[SamplingRow], list[int]]:
    """What is sampled, and from which rows of hidden states."""
    sampling_rows, rows, end = [], [], 0
    for scheduled in order:
        end += len(scheduled.tokens)
        if scheduled.sampling is None:
            continue
        draft_tokens, tree = (
            scheduled.tokens[len(scheduled.tokens) - scheduled.num_draft_tokens :],
            scheduled.tree,
        )
        for i in range(scheduled.num_draft_tokens + 1):
            sampling_rows.append(
                SamplingRow(
                    scheduled.request_id,
                    scheduled.sampling,
                    scheduled.history,
                    scheduled.prompt_length,
                    tree.branch(i - 1) if tree else draft_tokens[:i],
                )
            )
            rows.append(end - 1 - scheduled.num_draft_tokens + i)
        for sibling in scheduled.siblings:
            sampling_rows.append(
                SamplingRow(sibling.id, sibling.params, scheduled.history, scheduled.prompt_length, [])
            )
            rows.append(end - 1)
    return sampling_rows, rows
