"""Decode attention on a CPU without copying keys or values together: torch's embedding bags read the blocks in place.

An embedding bag is a sum of a table's rows, each with a weight of its own, and both products of attention are that:

    scores[h, block]  = Σ_d  q[h, d] * keys[block, h // group, d, :]         128 rows of one block's tokens
    out[h]            = Σ_p  weights[h, p] * values[block(p), h // group, offset(p), :]

The first needs a block's keys stored by dimension, ``[head_dim, block_size]``: one number of all its tokens in a row.
Sums are float32, and rows are read where they lie, so that a sequence costs what it is long, wherever its blocks are.
Gathering the blocks and multiplying them moves all of it three times, and oneDNN then packs it once more.

Shapes: as in ``paged_decode``, with ``keys_by_dimension``; ``q`` and the cache have one dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.paged_decode import cap_
from kernels.paged_kv import PagedKV


@dataclass(slots=True)
class Bags:
    """What a group of sequences reads: the same in all layers of one window."""

    keys: Tensor
    """int32 [sequences * blocks * new * heads * head_dim]: rows of keys, ``head_dim`` to a bag."""
    key_starts: Tensor
    """int32: where each bag begins."""
    values: Tensor
    """int32 [sequences * new * heads * seen]: rows of values, ``seen`` to a bag."""
    value_starts: Tensor
    blocks: int
    seen: slice
    """Of the blocks' positions, those that anyone sees."""
    unseen: Tensor | None
    """bool [sequences, new, 1, seen]: who does not see which of them; ``None`` if everyone sees all."""

    @classmethod
    def of(
        cls,
        block_tables: Tensor,
        seq_lens: Tensor,
        new: int,
        heads: int,
        cache_shape: torch.Size,
        window: int | None,
    ) -> Bags:
        """``block_tables`` may be wider than the longest sequence needs. All on the CPU."""
        # In numpy, whose small operations take a third of torch's time.
        _, kv_heads, block_size, head_dim = cache_shape
        tables, lens = block_tables.numpy(), seq_lens.numpy()[:, None]
        ends = lens - np.arange(new - 1, -1, -1)
        starts = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)
        first = starts[:, :1] // block_size
        blocks = int(((lens - 1) // block_size - first).max()) + 1
        # Of a shorter sequence some block is read again, and not seen.
        columns = np.minimum(first + np.arange(blocks), tables.shape[1] - 1)
        tables = np.take_along_axis(tables, columns, 1)
        ends, starts = ends - first * block_size, starts - first * block_size
        seen = slice(int(starts.min()), int(ends.max()))
        positions = np.arange(seen.start, seen.stop)
        unseen = None
        if starts.max() > seen.start or ends.min() < seen.stop:
            unseen = (positions >= ends[..., None]) | (positions < starts[..., None])

        # [sequences, blocks, kv_heads]: a block's part of one head.
        parts = (tables[..., None] * kv_heads + np.arange(kv_heads)).astype(np.int32)[..., None]
        keys = parts * head_dim + np.arange(head_dim, dtype=np.int32)
        keys = _each_head(keys[:, :, None], new, heads)
        values = parts * block_size + np.arange(block_size, dtype=np.int32)
        values = values.swapaxes(1, 2).reshape(len(lens), 1, kv_heads, -1)[..., seen]
        values = _each_head(values[:, None], new, heads)
        return cls(
            torch.from_numpy(keys),
            torch.arange(0, len(keys), head_dim, dtype=torch.int32),
            torch.from_numpy(values),
            torch.arange(0, len(values), len(positions), dtype=torch.int32),
            blocks,
            seen,
            None if unseen is None else torch.from_numpy(unseen[:, :, None]),
        )


def _each_head(rows: np.ndarray, new: int, heads: int) -> np.ndarray:
    """``rows`` [sequences, blocks, 1, kv_heads, …] once for each new token and each head that shares them, in one."""
    sequences, blocks, _, kv_heads, size = rows.shape
    shape = sequences, blocks, new, kv_heads, heads // kv_heads, size
    return np.broadcast_to(rows[..., None, :], shape).reshape(-1)


def paged_bags(
    q: Tensor,
    kv: PagedKV,
    bags: Bags,
    scale: float,
    softcap: float | None = None,
) -> Tensor:
    """``q`` [sequences * new, heads, head_dim] → the same shape."""
    tokens, heads, head_dim = q.shape
    block_size, sequences = kv.keys.shape[2], len(kv.seq_lens)
    rows = tokens // sequences * heads
    queries = q.reshape(sequences, 1, -1).expand(-1, bags.blocks, -1).mul(scale).view(-1)
    scores = torch.embedding_bag(
        kv.keys.transpose(2, 3).view(-1, block_size), bags.keys, bags.key_starts, False, 0, False, queries
    )[0]
    scores = scores.view(sequences, bags.blocks, rows, block_size).transpose(1, 2)
    scores = scores.reshape(sequences, rows, -1)[..., bags.seen]
    if softcap is not None:
        scores = cap_(scores, softcap)
    if bags.unseen is not None:
        scores.view(sequences, -1, heads, scores.shape[-1]).masked_fill_(bags.unseen, float("-inf"))
    # Inside, softmax is float32 in any case.
    weights = torch.softmax(scores, -1).view(-1)
    mixed = torch.embedding_bag(
        kv.values.view(-1, head_dim), bags.values, bags.value_starts, False, 0, False, weights
    )[0]
    return mixed.view(tokens, heads, head_dim)
