"""Causal attention of several new tokens per sequence over its paged cache, the new tokens' included.

    out[t, h] = softmax(scale * q[t, h] · K[h // group, :p + 1]ᵀ) V[h // group, :p + 1]

where ``t`` is a row of sequence ``s`` at position ``p = seq_lens[s] - new[s] + (t - query_starts[s])`` and
``new[s] = query_starts[s + 1] - query_starts[s]``. A chunk of a long prompt attends to the chunks before it
through the cache: chunked prefill needs no other case.

Shapes: ``q`` [tokens, heads, head_dim], the sequences' rows one after another; ``k_cache``, ``v_cache``
[blocks, kv_heads, block_size, head_dim]; ``block_tables`` int64 [sequences, max_blocks], padded with any finite
block; ``query_starts`` int64 [sequences + 1]; ``seq_lens`` int64 [sequences]. Returns [tokens, heads, head_dim].
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.paged_decode import gather

TILE = 64
"""Query positions a tile. Tiles are cut at multiples of it counted from the sequence's start, never from the
chunk's, so a token's attention is computed in the same shape, to the same bits, however a prompt is chunked."""


def paged_prefill_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> Tensor:
    block_size = k_cache.shape[2]
    out = torch.empty_like(q)
    starts, lens = query_starts.tolist(), seq_lens.tolist()
    for s, length in enumerate(lens):
        first, last = starts[s], starts[s + 1]
        # Whole tiles of keys; what lies past the end is masked, and is finite wherever it comes from.
        blocks = -(-(-(-length // TILE) * TILE) // block_size)
        table = block_tables[s : s + 1, :blocks]
        if table.shape[1] < blocks:
            table = torch.nn.functional.pad(table, (0, blocks - table.shape[1]))
        keys, values = gather(k_cache, table), gather(v_cache, table)
        _attend(q[first:last], keys, values, length - (last - first), scale, out[first:last])
    return out


def _attend(q: Tensor, keys: Tensor, values: Tensor, start: int, scale: float, out: Tensor) -> None:
    """One sequence: ``q``, ``out`` [new, heads, head_dim] from position ``start``; keys, values [kv_heads, n, d]."""
    new, heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    for begin in range(start - start % TILE, start + new, TILE):
        end = begin + TILE
        low, high = max(begin, start), min(end, start + new)
        tile = q.new_zeros(TILE, heads, head_dim)
        tile[low - begin : high - begin] = q[low - start : high - start]
        # [kv_heads, group * TILE, head_dim]: the heads that share keys become rows of one product.
        rows = tile.view(TILE, kv_heads, -1, head_dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, head_dim)
        scores = torch.bmm(rows * scale, keys[:, :end].transpose(1, 2)).view(kv_heads, -1, TILE, end)
        above = torch.ones(TILE, TILE, dtype=torch.bool, device=q.device).triu_(1)
        scores[..., begin:].masked_fill_(above, float("-inf"))
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        mixed = torch.bmm(weights.view(kv_heads, -1, end), values[:, :end])
        mixed = mixed.view(kv_heads, -1, TILE, head_dim).permute(2, 0, 1, 3).reshape(TILE, heads, head_dim)
        out[low - start : high - start] = mixed[low - begin : high - begin]


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> Tensor:
    return paged_prefill_reference(q, k_cache, v_cache, block_tables, query_starts, seq_lens, scale)
