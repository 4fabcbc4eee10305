"""Decode attention on a CPU without copying keys or values together: torch's embedding bags read the blocks in place.

An embedding bag is a sum of a table's rows, each with a weight of its own, and both products of attention are that:

    scores[h, block]  = Σ_d  q[h, d] * keys[block, h // group, d, :]         128 rows of one block's tokens
    out[h]            = Σ_p  weights[h, p] * values[block(p), h // group, offset(p), :]

The first needs a block's keys stored by dimension, ``[head_dim, block_size]``: one number of all its tokens in a row.
Sums are float32, and rows are read where they lie, so that a sequence costs what it is long, wherever its blocks are.
Gathering the blocks and multiplying them moves all of it three times, and oneDNN then packs it once more: for 1,024
tokens of 8 heads of 128 in bfloat16, from memory, one thread took 450 µs this way and 900 that way (torch 2.13).

Shapes: as in ``paged_decode``; ``k_cache`` is ``by_dimension``, and ``q`` and the caches have one dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged_decode import cap_


def by_dimension(k_cache: Tensor) -> bool:
    """Whether ``k_cache`` [blocks, kv_heads, block_size, head_dim] lies as [blocks, kv_heads, head_dim, block_size]."""
    return k_cache.stride(3) != 1


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
        _, kv_heads, block_size, head_dim = cache_shape
        sequences, group = len(seq_lens), heads // kv_heads
        ends = seq_lens[:, None] - torch.arange(new - 1, -1, -1)
        starts = torch.zeros_like(ends) if window is None else (ends - window).clamp_(min=0)
        first = starts[:, 0] // block_size
        blocks = int(((seq_lens - 1) // block_size - first).max()) + 1
        # Of a shorter sequence some block is read again, and not seen.
        columns = first[:, None] + torch.arange(blocks)
        tables = block_tables.gather(1, columns.clamp_(max=block_tables.shape[1] - 1))
        ends, starts = (ends - (first * block_size)[:, None], starts - (first * block_size)[:, None])
        seen = slice(int(starts.min()), int(ends.max()))
        positions = torch.arange(seen.start, seen.stop)
        unseen = (positions >= ends[..., None]) | (positions < starts[..., None])

        # [sequences, blocks, kv_heads]: a block's part of one head.
        parts = (tables[..., None] * kv_heads + torch.arange(kv_heads)).int()
        keys = parts[..., None] * head_dim + _count(head_dim)
        keys = keys[:, :, None, :, None].expand(-1, -1, new, -1, group, -1)
        values = parts[..., None] * block_size + _count(block_size)
        values = values.transpose(1, 2).reshape(sequences, kv_heads, -1)[..., seen]
        values = values[:, None, :, None].expand(-1, new, -1, group, -1)
        return cls(
            keys.reshape(-1),
            _count(keys.numel(), head_dim),
            values.reshape(-1),
            _count(values.numel(), len(positions)),
            blocks,
            seen,
            unseen[:, :, None] if unseen.any() else None,
        )


def _count(end: int, step: int = 1) -> Tensor:
    return torch.arange(0, end, step, dtype=torch.int32)


def paged_bags(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    bags: Bags,
    sequences: int,
    scale: float,
    softcap: float | None = None,
) -> Tensor:
    """``q`` [sequences * new, heads, head_dim] → the same shape."""
    tokens, heads, head_dim = q.shape
    block_size = k_cache.shape[2]
    rows = tokens // sequences * heads
    queries = (q * scale).view(sequences, 1, rows * head_dim).expand(-1, bags.blocks, -1).reshape(-1)
    scores = torch.embedding_bag(
        k_cache.transpose(2, 3).view(-1, block_size), bags.keys, bags.key_starts, False, 0, False, queries
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
        v_cache.view(-1, head_dim), bags.values, bags.value_starts, False, 0, False, weights
    )[0]
    return mixed.view(tokens, heads, head_dim)
