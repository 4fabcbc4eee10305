"""Causal attention of several new tokens per sequence over its paged cache, the new tokens' included.

    out[t, h] = softmax(cap(scale * q[t, h] · K[h // group, a:p + 1]ᵀ)) V[h // group, a:p + 1]
    a         = max(0, p + 1 - window), or 0 where there is no ``window``
    cap(x)    = softcap * tanh(x / softcap), or x where there is no ``softcap``

where ``t`` is a row of sequence ``s`` at position ``p = seq_lens[s] - new[s] + (t - query_starts[s])`` and
``new[s] = query_starts[s + 1] - query_starts[s]``. A chunk of a long prompt attends to the chunks before it
through the cache: chunked prefill needs no other case.

Shapes: ``q`` [tokens, heads, head_dim], the sequences' rows one after another; ``k_cache``, ``v_cache``
[blocks, kv_heads, block_size, head_dim], in the dtype of ``q`` or, with float32 ``k_scales``, ``v_scales``
[blocks, kv_heads, block_size], in int8 or float8_e4m3fn; ``block_tables`` int64 [sequences, max_blocks], padded
with any finite block; ``query_starts`` int64 [sequences + 1]; ``seq_lens`` int64 [sequences]. Returns
[tokens, heads, head_dim].
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.paged_decode import TILE, cap_, gather, gather_scales, runs


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
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    tile: int = TILE,
) -> Tensor:
    """``tile``: another one makes other bits."""
    _, kv_heads, block_size, _ = k_cache.shape
    out = torch.empty_like(q)
    starts, lens = query_starts.tolist(), seq_lens.tolist()
    for s, length in enumerate(lens):
        first, last = starts[s], starts[s + 1]
        start = length - (last - first)
        # Whole tiles of keys; what lies past the end is masked, and is finite wherever it comes from.
        blocks = -(-(-(-length // tile) * tile) // block_size)
        skipped = _first_key(start - start % tile, window, tile) // block_size
        table = block_tables[s : s + 1, skipped:blocks]
        if table.shape[1] < blocks - skipped:
            table = torch.nn.functional.pad(table, (0, blocks - skipped - table.shape[1]))
        rows = runs(table, kv_heads)
        keys, values = (gather(cache, rows, kv_heads, q.dtype) for cache in (k_cache, v_cache))
        scales = tuple(
            None if scales is None else gather_scales(scales, rows, kv_heads)
            for scales in (k_scales, v_scales)
        )
        new, offset = slice(first, last), skipped * block_size
        _attend(q[new], keys, values, scales, offset, start, scale, window, softcap, tile, out[new])
    return out


def _first_key(begin: int, window: int | None, tile: int) -> int:
    """The first position, in whole tiles, that the tile from ``begin`` sees."""
    seen = 0 if window is None else max(0, begin + 1 - window)
    return seen - seen % tile


def _attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scales: tuple[Tensor | None, ...],
    offset: int,
    start: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    tile: int,
    out: Tensor,
) -> None:
    """One sequence: ``q``, ``out`` [new, heads, head_dim] from position ``start``; ``keys``, ``values``
    [kv_heads, n, head_dim] from position ``offset``; ``scales``: those of both, [kv_heads, 1, n]."""
    new, heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    k_scales, v_scales = scales
    before = start % tile
    tiles = -(-(before + new) // tile)
    padded = q.new_zeros(tiles * tile, heads, head_dim)
    torch.mul(q, scale, out=padded[before : before + new])
    # [tiles, kv_heads, group * tile, head_dim]: the heads that share keys become rows of one product.
    rows = padded.view(tiles, tile, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
    rows = rows.reshape(tiles, kv_heads, -1, head_dim)
    mixed = torch.empty_like(rows)
    above = torch.ones(tile, tile, dtype=torch.bool, device=q.device).triu_(1)
    for i in range(tiles):
        begin = start - before + i * tile
        end = begin + tile
        first = _first_key(begin, window, tile)
        seen = slice(first - offset, end - offset)
        scores = torch.bmm(rows[i], keys[:, seen].transpose(1, 2))
        if k_scales is not None:
            scores.mul_(k_scales[..., seen])
        cap_(scores, softcap)
        by_head = scores.view(kv_heads, -1, tile, end - first)
        if window is None:
            by_head[..., begin - first :].masked_fill_(above, float("-inf"))
        else:
            back = torch.arange(begin, end, device=q.device)[:, None] - torch.arange(
                first, end, device=q.device
            )
            by_head.masked_fill_((back < 0) | (back >= window), float("-inf"))
        # Inside, softmax is float32 in any case.
        weights = torch.softmax(scores, dim=-1)
        if v_scales is not None:
            weights.mul_(v_scales[..., seen])
        torch.bmm(weights, values[:, seen], out=mixed[i])
    mixed = mixed.view(tiles, kv_heads, -1, tile, head_dim).permute(0, 3, 1, 2, 4)
    out.copy_(mixed.reshape(tiles * tile, heads, head_dim)[before : before + new])


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
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    tile: int = TILE,
) -> Tensor:
    return paged_prefill_reference(
        q,
        k_cache,
        v_cache,
        block_tables,
        query_starts,
        seq_lens,
        scale,
        window,
        softcap,
        k_scales,
        v_scales,
        tile,
    )
