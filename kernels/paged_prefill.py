"""Causal attention of several new tokens per sequence over its paged cache, the new tokens' included.

    out[t, h] = softmax(cap(scale * q[t, h] · K[h // group, a:p + 1]ᵀ)) V[h // group, a:p + 1]
    a         = max(0, p + 1 - window), or 0 where there is no ``window``
    cap(s)    = softcap * tanh(s / softcap), or s where there is no ``softcap``

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

from kernels.paged_decode import cap_, gather

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
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    block_size = k_cache.shape[2]
    out = torch.empty_like(q)
    starts, lens = query_starts.tolist(), seq_lens.tolist()
    for s, length in enumerate(lens):
        first, last = starts[s], starts[s + 1]
        start = length - (last - first)
        # Whole tiles of keys; what lies past the end is masked, and is finite wherever it comes from.
        blocks = -(-(-(-length // TILE) * TILE) // block_size)
        skipped = _first_key(start - start % TILE, window) // block_size
        table = block_tables[s : s + 1, skipped:blocks]
        if table.shape[1] < blocks - skipped:
            table = torch.nn.functional.pad(table, (0, blocks - skipped - table.shape[1]))
        keys, values = gather(k_cache, table), gather(v_cache, table)
        rows = slice(first, last)
        _attend(q[rows], keys, values, skipped * block_size, start, scale, window, softcap, out[rows])
    return out


def _first_key(begin: int, window: int | None) -> int:
    """The first position, in whole tiles, that the tile from ``begin`` sees."""
    seen = 0 if window is None else max(0, begin + 1 - window)
    return seen - seen % TILE


def _attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    offset: int,
    start: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    out: Tensor,
) -> None:
    """One sequence: ``q``, ``out`` [new, heads, head_dim] from position ``start``; ``keys``, ``values``
    [kv_heads, n, head_dim] from position ``offset``."""
    new, heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    for begin in range(start - start % TILE, start + new, TILE):
        end = begin + TILE
        low, high = max(begin, start), min(end, start + new)
        tile = q.new_zeros(TILE, heads, head_dim)
        tile[low - begin : high - begin] = q[low - start : high - start]
        first = _first_key(begin, window)
        seen = slice(first - offset, end - offset)
        # [kv_heads, group * TILE, head_dim]: the heads that share keys become rows of one product.
        rows = tile.view(TILE, kv_heads, -1, head_dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, head_dim)
        scores = cap_(torch.bmm(rows * scale, keys[:, seen].transpose(1, 2)), softcap)
        scores = scores.view(kv_heads, -1, TILE, end - first)
        if window is None:
            above = torch.ones(TILE, TILE, dtype=torch.bool, device=q.device).triu_(1)
            scores[..., begin - first :].masked_fill_(above, float("-inf"))
        else:
            back = torch.arange(begin, end, device=q.device)[:, None] - torch.arange(
                first, end, device=q.device
            )
            scores.masked_fill_((back < 0) | (back >= window), float("-inf"))
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        mixed = torch.bmm(weights.view(kv_heads, -1, end - first), values[:, seen])
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
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    return paged_prefill_reference(
        q, k_cache, v_cache, block_tables, query_starts, seq_lens, scale, window, softcap
    )
