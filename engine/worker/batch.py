"""A plan as tensors: all new tokens of all requests in one flat row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention.metadata import AttentionMetadata, DecodeGroup, PrefillGroup
from engine.core.plan import Plan, ScheduledRequest
from engine.core.sampling_row import SamplingRow
from engine.worker.upload import upload
from kernels.launch import on_triton
from kernels.native.attention import Sequences
from kernels.paged_prefill import TILE

SHORT = 16
"""Tokens of the longest chunk that is attended to like a decode: guesses to be verified, and the ends of prompts."""
_STEPS = (64, 192, 256, 320, 512)
_STRIDE = 256
"""Tokens that decode groups are padded to; beyond the last step, whole strides. A matter of speed alone."""
_MOST = 2048
"""Padded tokens of a decode group on a CPU: more of them gathered at once would no longer be in its caches when they
are multiplied. In bfloat16, on one thread of a busy machine, eight sequences of 1,024 tokens took 26 ms a layer as one
group, and 7 ms as four."""
_TILE = 16
"""Query positions of a tile where bits must not depend on company, in which most tiles hold one token."""


@dataclass(slots=True)
class Batch:
    tokens: Tensor
    """int64 [tokens]"""
    positions: Tensor
    """int64 [tokens]"""
    attention: AttentionMetadata
    sampling_rows: list[SamplingRow]
    """A request's draws stand together and in order; those of siblings that begin follow."""
    logits_indices: Tensor
    """int64 [len(draws)]: the row of the token before each."""
    adapters: list[tuple[str, int, int]]
    """Which rows are whose: (adapter, first row, row after its last)."""
    scored: list[tuple[ScheduledRequest, int]]
    """Works whose tokens' followers are to be scored, and the row of the first token of each."""


class BatchBuilder:
    """Decodes come first, then chunks of prompts.

    On a CPU decodes are grouped by the length of their sequence, in steps: a short sequence is then not padded to
    the longest one's length. On a GPU they are one group: the kernel stops at each sequence's own end. Guesses to be
    verified are a group for each number of them. All this is for attention in torch and Triton; that in C has its
    own order, and looks at ``sequences`` alone.

    ``alike``: a token's attention must be the same to the last bit in whatever batch it is computed. All tokens
    then take one path, prefill, in tiles whose shape depends on the token's position alone, as libraries choose the
    order of their sums by shape. One new token costs what a tile costs.
    """

    def __init__(
        self, block_size: int, padding_block: int, device: torch.device, *, alike: bool = False
    ) -> None:
        self._block_size = block_size
        self._padding_block = padding_block
        self._device = device
        self._grouped = device.type == "cpu" and not on_triton(torch.empty(0, device=device))
        self._longest = 0 if alike else SHORT
        self._tile = _TILE if alike else TILE

    def build(self, plan: Plan) -> Batch:
        groups: dict[tuple[int, int], list[ScheduledRequest]] = {}
        chunks = []
        for scheduled in plan.requests:
            new = len(scheduled.tokens)
            if new <= self._longest and self._width(scheduled.start + 1) == (
                width := self._width(scheduled.end)
            ):
                groups.setdefault((new, width), []).append(scheduled)
            else:
                chunks.append(scheduled)
        order = [scheduled for key in sorted(groups) for scheduled in groups[key]] + chunks
        counts = np.array([len(scheduled.tokens) for scheduled in order])
        starts = np.array([scheduled.start for scheduled in order])
        ends = np.cumsum(counts)
        tokens = np.array([token for scheduled in order for token in scheduled.tokens], dtype=np.int64)
        positions = np.arange(len(tokens)) - np.repeat(ends - counts - starts, counts)

        width = max(-(-scheduled.end // self._block_size) for scheduled in order)
        width = max([width, *(width for _, width in groups)])
        tables = np.full((len(order), width), self._padding_block, dtype=np.int64)
        for row, scheduled in enumerate(order):
            used = -(-scheduled.end // self._block_size)
            tables[row, :used] = scheduled.blocks[:used]
        owners = np.repeat(np.arange(len(order)), counts)
        blocks, offsets = tables[owners, positions // self._block_size], positions % self._block_size
        slots = blocks * self._block_size + offsets

        decoded = len(order) - len(chunks)
        bounds = np.concatenate([[0], ends])
        sampling_rows, logits_indices = _sampling_rows(order, ends.tolist())
        arrays = [tokens, positions, slots, blocks, offsets, tables, starts + counts, bounds]
        arrays += [bounds[decoded:] - bounds[decoded], np.array(logits_indices, dtype=np.int64)]
        uploaded = upload(arrays, self._device)
        token_ids, token_positions, token_slots, token_blocks, token_offsets = uploaded[:5]
        block_tables, seq_lens, all_starts, query_starts, rows_drawn = uploaded[5:]
        decodes, row, token = [], 0, 0
        for new, length in sorted(groups):
            table = block_tables[:, : length or width]
            last = row + len(groups[new, length])
            most = max(1, _MOST // (length * self._block_size)) if self._grouped else last - row
            while row < last:
                rows = slice(row, min(row + most, last))
                stop = token + (rows.stop - row) * new
                decodes.append(DecodeGroup(token, stop, table[rows], seq_lens[rows], new))
                row, token = rows.stop, stop
        prefills = []
        if chunks:
            prefills.append(
                PrefillGroup(token, len(tokens), block_tables[row:], query_starts, seq_lens[row:], self._tile)
            )
        return Batch(
            tokens=token_ids,
            positions=token_positions,
            attention=AttentionMetadata(
                token_slots,
                decodes,
                prefills,
                Sequences(block_tables, all_starts, seq_lens),
                (token_blocks, token_offsets),
            ),
            sampling_rows=sampling_rows,
            logits_indices=rows_drawn,
            adapters=[
                (scheduled.adapter, int(end) - len(scheduled.tokens), int(end))
                for scheduled, end in zip(order, ends, strict=True)
                if scheduled.adapter is not None
            ],
            scored=[
                (scheduled, int(end) - len(scheduled.tokens))
                for scheduled, end in zip(order, ends, strict=True)
                if scheduled.prompt_logprobs is not None
            ],
        )

    def _width(self, length: int) -> int:
        """Blocks that a sequence of ``length`` tokens is padded to; 0 where that is left to the batch."""
        if not self._grouped:
            return 0
        padded = next((step for step in _STEPS if length <= step), -(-length // _STRIDE) * _STRIDE)
        return -(-padded // self._block_size)


def _sampling_rows(order: list[ScheduledRequest], ends: list[int]) -> tuple[list[SamplingRow], list[int]]:
    sampling_rows, rows = [], []
    for scheduled, end in zip(order, ends, strict=True):
        if scheduled.sampling is None:
            continue
        draft_tokens = scheduled.tokens[len(scheduled.tokens) - scheduled.num_draft_tokens :]
        for i in range(scheduled.num_draft_tokens + 1):
            draft_token = draft_tokens[i] if i < scheduled.num_draft_tokens else None
            sampling_rows.append(
                SamplingRow(
                    scheduled.request_id,
                    scheduled.sampling,
                    scheduled.history,
                    scheduled.prompt_length,
                    draft_tokens[:i],
                    draft_token,
                )
            )
            rows.append(end - 1 - scheduled.num_draft_tokens + i)
        for sibling in scheduled.siblings:
            sampling_rows.append(
                SamplingRow(sibling.id, sibling.params, scheduled.history, scheduled.prompt_length, [])
            )
            rows.append(end - 1)
    return sampling_rows, rows
