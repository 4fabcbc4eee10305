"""Attention in chunks of the context, as Llama 4 has it: a token sees what is before it in its own chunk.

A sequence then counts as several, one for each chunk that its new tokens lie in, with the blocks from where that chunk
begins. Attention over those is causal attention as any other, so that no backend knows of chunks.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np
import torch

from engine.attention.metadata import CommonAttentionMetadata, DecodeShape
from engine.worker.upload import upload


def by_token(common: CommonAttentionMetadata, chunk: int, new: int = 1) -> CommonAttentionMetadata:
    """``common``, in which every sequence has ``new`` tokens, in chunks of so many: each token is a sequence. Computed
    on its device, without the host: CUDA graphs record it."""
    device, blocks, tables = common.seq_lens.device, chunk // common.block_size, common.block_tables
    positions = (common.seq_lens[:, None] - torch.arange(new, 0, -1, device=device)).view(-1)
    # Negative in padding.
    number = positions.clamp(min=0) // chunk
    columns = number[:, None] * blocks + torch.arange(min(blocks, tables.shape[1]), device=device)
    return replace(
        common,
        block_tables=tables.repeat_interleave(new, 0).gather(1, columns.clamp_(max=tables.shape[1] - 1)),
        query_starts=torch.arange(len(number) + 1, device=device),
        seq_lens=(positions + 1 - number * chunk).clamp_(min=0),
        decodes=[DecodeShape(len(number), 1, 0)],
    )


def in_chunks(
    common: CommonAttentionMetadata, starts: np.ndarray, counts: np.ndarray, chunk: int
) -> CommonAttentionMetadata:
    """``starts`` and ``counts``: of each sequence's new tokens."""
    if common.only_single_tokens:
        return by_token(common, chunk)
    size, width, ends = common.block_size, common.block_tables.shape[1], starts + counts
    first = starts // chunk
    pieces = (ends - 1) // chunk - first + 1
    owners = np.repeat(np.arange(len(starts)), pieces)
    numbers = first[owners] + np.arange(len(owners)) - np.repeat(pieces.cumsum() - pieces, pieces)
    lengths = np.minimum(ends[owners] - numbers * chunk, chunk)
    new = lengths - np.maximum(starts[owners] - numbers * chunk, 0)
    columns = numbers[:, None] * (chunk // size) + np.arange(min(chunk // size, width))
    bounds = np.concatenate([[0], new.cumsum()])
    decoded = sum(shape.sequences for shape in common.decodes)
    decodes = [
        DecodeShape(sum(shape.sequences for shape in shapes), count, 0)
        for count, shapes in groupby(common.decodes, key=lambda shape: shape.new)
    ]
    if pieces[:decoded].max(initial=1) > 1:
        # Draft tokens on both sides of an edge: all are attended to like prompts.
        decoded, decodes = 0, []
    arrays = [owners, np.minimum(columns, width - 1), bounds, lengths, bounds[decoded:] - bounds[decoded]]
    rows, places, query_starts, seq_lens, prefill_starts = upload(arrays, common.slots.device)
    return replace(
        common,
        block_tables=common.block_tables.index_select(0, rows).gather(1, places),
        query_starts=query_starts,
        seq_lens=seq_lens,
        decodes=decodes,
        prefill_starts=prefill_starts if decoded < len(new) else None,
    )
