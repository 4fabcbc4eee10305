"""Causal attention of several new tokens per sequence over its paged cache, the new tokens' included.

    out[t, h] = softmax(cap(scale * q[t, h] · K[h // group, a:p + 1]ᵀ)) V[h // group, a:p + 1]
    a         = max(0, p + 1 - window), or 0 where there is no ``window``
    cap(x)    = softcap * tanh(x / softcap), or x where there is no ``softcap``

With ``sinks`` softmax's denominator has one more term, as in paged_decode.py.

where ``t`` is a row of sequence ``s`` at position ``p = seq_lens[s] - new[s] + (t - query_starts[s])`` and
``new[s] = query_starts[s + 1] - query_starts[s]``. A chunk of a long prompt attends to earlier chunks
through the cache, so chunked prefill is not a special case.

Shapes: ``q`` [tokens, heads, head_dim], the sequences' rows one after another; ``query_starts`` int64
[sequences + 1], where a sequence may have no row; of the cache, see paged_kv.py. Returns [tokens, heads, head_dim].
On a GPU: see flash_prefill.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.flash_prefill import paged_prefill_triton
from kernels.launch import on_triton
from kernels.paged_decode import TILE, cache_rows, cap_, gather_keys, gather_scales, gather_values, softmax
from kernels.paged_kv import PagedKV


def paged_prefill_reference(
    q: Tensor,
    kv: PagedKV,
    query_starts: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    tile: int = TILE,
    sinks: Tensor | None = None,
) -> Tensor:
    """``tile``: results of different tiles differ in rounding."""
    _, kv_heads, block_size, _ = kv.keys.shape
    starts, lens = query_starts.tolist(), kv.seq_lens.tolist()
    out = torch.empty_like(q)
    if sinks is not None:
        sinks = sinks.view(kv_heads, -1, 1).repeat_interleave(tile, 1)
    for s, length in enumerate(lens):
        new = q[starts[s] : starts[s + 1]]
        if not len(new):
            continue
        start = length - len(new)
        rows, padding = tiled(new, start, scale, kv_heads, tile)
        # Whole tiles of keys; positions past the end are masked, and finite in any block.
        blocks = -(-(start - padding + len(rows) * tile) // block_size)
        table = kv.block_tables[s : s + 1, :blocks]
        table = torch.nn.functional.pad(table, (0, blocks - table.shape[1]))
        tiles_out = torch.empty_like(rows)
        for i, queries in enumerate(rows):
            begin = start - padding + i * tile
            _attend(queries, begin, kv, table, window, softcap, tile, sinks, tiles_out[i])
        by_token = tiles_out.view(*tiles_out.shape[:2], -1, tile, q.shape[2]).permute(0, 3, 1, 2, 4)
        by_token = by_token.reshape(-1, *q.shape[1:])
        out[starts[s] : starts[s + 1]] = by_token[padding : padding + len(new)]
    return out


def tiled(q: Tensor, start: int, scale: float, kv_heads: int, tile: int) -> tuple[Tensor, int]:
    """Queries as [tiles, kv_heads, group * tile, head_dim], a group's heads as rows of one product, and the number of
    positions of the first tile that precede ``start``."""
    new, heads, head_dim = q.shape
    padding = start % tile
    tiles = -(-(padding + new) // tile)
    padded = q.new_zeros(tiles * tile, heads, head_dim)
    torch.mul(q, scale, out=padded[padding : padding + new])
    rows = padded.view(tiles, tile, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
    return rows.reshape(tiles, kv_heads, -1, head_dim), padding


def _attend(
    queries: Tensor,
    begin: int,
    kv: PagedKV,
    block_table: Tensor,
    window: int | None,
    softcap: float | None,
    tile: int,
    sinks: Tensor | None,
    out: Tensor,
) -> None:
    """One tile, starting at position ``begin``: ``queries``, ``out`` [kv_heads, group * tile, head_dim];
    ``block_table`` [1, …]; ``sinks`` [kv_heads, group * tile, 1]."""
    _, kv_heads, block_size, _ = kv.keys.shape
    end = begin + tile
    first = 0 if window is None else max(0, begin + 1 - window) // tile * tile
    from_block = first // block_size
    rows = cache_rows(block_table[:, from_block : -(-end // block_size)], kv_heads)
    visible = slice(first - from_block * block_size, end - from_block * block_size)
    scores = torch.bmm(queries, gather_keys(kv, rows, kv_heads, queries.dtype)[..., visible])
    if kv.key_scales is not None and kv.scaled_by_token:
        scores.mul_(gather_scales(kv.key_scales, rows, kv_heads)[..., visible])
    cap_(scores, softcap)
    by_head = scores.view(kv_heads, -1, tile, end - first)
    positions = torch.arange(begin, end, device=queries.device)[:, None]
    if window is None:
        by_head[..., begin - first :].masked_fill_(positions < positions.T, float("-inf"))
    else:
        distance = positions - torch.arange(first, end, device=queries.device)
        by_head.masked_fill_((distance < 0) | (distance >= window), float("-inf"))
    weights = softmax(scores, sinks)
    if kv.value_scales is not None and kv.scaled_by_token:
        weights.mul_(gather_scales(kv.value_scales, rows, kv_heads)[..., visible])
    torch.bmm(weights, gather_values(kv, rows, kv_heads, queries.dtype)[:, visible], out=out)


def paged_prefill(
    q: Tensor,
    kv: PagedKV,
    query_starts: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    tile: int = TILE,
    sinks: Tensor | None = None,
) -> Tensor:
    attend = paged_prefill_triton if on_triton(q) and not kv.keys_by_dimension else paged_prefill_reference
    return attend(q, kv, query_starts, scale, window, softcap, tile, sinks)
