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

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Variant, arch, jit, on_triton, tl, triton
from kernels.paged_decode import TILE, cap_, gather, gather_keys, gather_scales, runs
from kernels.store_kv import widen


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
    block_size = k_cache.shape[2]
    starts, lens = query_starts.tolist(), seq_lens.tolist()
    out = torch.empty_like(q)
    for s, length in enumerate(lens):
        new = q[starts[s] : starts[s + 1]]
        start = length - len(new)
        rows, before = _tiles(new, start, scale, k_cache.shape[1], tile)
        # Whole tiles of keys; what lies past the end is masked, and is finite wherever it comes from.
        blocks = -(-(start - before + len(rows) * tile) // block_size)
        table = block_tables[s : s + 1, :blocks]
        table = torch.nn.functional.pad(table, (0, blocks - table.shape[1]))
        mixed = torch.empty_like(rows)
        for i, queries in enumerate(rows):
            begin = start - before + i * tile
            _attend(
                queries,
                begin,
                k_cache,
                v_cache,
                table,
                window,
                softcap,
                k_scales,
                v_scales,
                tile,
                mixed[i],
            )
        by_token = mixed.view(*mixed.shape[:2], -1, tile, q.shape[2]).permute(0, 3, 1, 2, 4)
        by_token = by_token.reshape(-1, *q.shape[1:])
        out[starts[s] : starts[s + 1]] = by_token[before : before + len(new)]
    return out


def _tiles(q: Tensor, start: int, scale: float, kv_heads: int, tile: int) -> tuple[Tensor, int]:
    """[tiles, kv_heads, group * tile, head_dim], the heads that share keys as rows of one product, and how many
    positions of the first tile lie before ``start``."""
    new, heads, head_dim = q.shape
    before = start % tile
    tiles = -(-(before + new) // tile)
    padded = q.new_zeros(tiles * tile, heads, head_dim)
    torch.mul(q, scale, out=padded[before : before + new])
    rows = padded.view(tiles, tile, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
    return rows.reshape(tiles, kv_heads, -1, head_dim), before


def _attend(
    queries: Tensor,
    begin: int,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    window: int | None,
    softcap: float | None,
    k_scales: Tensor | None,
    v_scales: Tensor | None,
    tile: int,
    out: Tensor,
) -> None:
    """One tile from position ``begin``: ``queries``, ``out`` [kv_heads, group * tile, head_dim]."""
    _, kv_heads, block_size, _ = k_cache.shape
    end = begin + tile
    first = 0 if window is None else max(0, begin + 1 - window) // tile * tile
    from_block = first // block_size
    rows = runs(block_table[:, from_block : -(-end // block_size)], kv_heads)
    seen = slice(first - from_block * block_size, end - from_block * block_size)
    scores = torch.bmm(queries, gather_keys(k_cache, rows, kv_heads, queries.dtype)[..., seen])
    if k_scales is not None:
        scores.mul_(gather_scales(k_scales, rows, kv_heads)[..., seen])
    cap_(scores, softcap)
    by_head = scores.view(kv_heads, -1, tile, end - first)
    positions = torch.arange(begin, end, device=queries.device)[:, None]
    if window is None:
        by_head[..., begin - first :].masked_fill_(positions < positions.T, float("-inf"))
    else:
        back = positions - torch.arange(first, end, device=queries.device)
        by_head.masked_fill_((back < 0) | (back >= window), float("-inf"))
    # Inside, softmax is float32 in any case.
    weights = torch.softmax(scores, dim=-1)
    if v_scales is not None:
        weights.mul_(gather_scales(v_scales, rows, kv_heads)[..., seen])
    torch.bmm(weights, gather(v_cache, rows, kv_heads, queries.dtype)[:, seen], out=out)


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
    # The kernel knows no keys by dimension: see paged_bags.py.
    attend = paged_prefill_triton if on_triton(q) and k_cache.stride(3) == 1 else paged_prefill_reference
    return attend(
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


@jit
def _find(query_starts, sequences, tile, TOKENS: tl.constexpr):
    """Whose the tile is. A sequence's first is ``start // TOKENS + sequence``, so that each has tiles enough."""
    low = 0
    high = sequences
    while high - low > 1:
        middle = (low + high) // 2
        begins = tl.load(query_starts + middle).to(tl.int32) // TOKENS + middle <= tile
        low = tl.where(begins, middle, low)
        high = tl.where(begins, high, middle)
    return low


@jit
def _load(pointers, inside, MASKED: tl.constexpr):
    return tl.load(pointers, inside, other=0) if MASKED else tl.load(pointers)


@jit
def _attend_tiles(
    mixed,
    most,
    total,
    queries,
    positions,
    begin,
    end,
    seen_begin,
    seen_end,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    table,
    scale,
    softcap,
    window,
    cache_block,
    cache_offset,
    scales_block,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    QUANTIZED: tl.constexpr,
    FP8: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The tiles of keys from ``begin`` to ``end``. ``MASKED``: of these not all rows see all."""
    # Scaled weights may be too small for float16.
    weight_dtype: tl.constexpr = tl.bfloat16 if QUANTIZED and queries.dtype == tl.float16 else queries.dtype
    columns = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_DIM)
    for at in tl.range(begin, end, BLOCK_N):
        keys = at + columns
        known = (keys >= seen_begin) & (keys < seen_end)
        blocks = _load(table + keys // BLOCK_SIZE, known, MASKED).to(tl.int32).to(tl.int64)
        offsets = (keys if BLOCK_SIZE > BLOCK_N else columns) % BLOCK_SIZE
        places = (blocks * cache_block + offsets * cache_offset)[:, None] + dims[None, :]
        inside = known[:, None] & (dims < HEAD_DIM)[None, :] if MASKED else (dims < HEAD_DIM)[None, :]
        k = _load(k_cache + places, inside, MASKED or HEAD_DIM < BLOCK_DIM)
        if QUANTIZED:
            k = widen(k, FP8)
        scores = tl.dot(queries, k.to(queries.dtype).T, input_precision="ieee")
        if QUANTIZED:
            scale_places = blocks * scales_block + offsets
            scores *= _load(k_scales + scale_places, known, MASKED)[None, :]
        if SOFTCAP:
            # tanh(x) = 1 - 2 / (exp(2x) + 1); ``scale`` holds what is in the exponent.
            scores = softcap - 2 * softcap / (tl.exp2(tl.minimum(scores * scale, 126.0)) + 1)
        if MASKED:
            seen = keys[None, :] <= positions[:, None]
            if WINDOW:
                seen &= keys[None, :] > positions[:, None] - window
            scores = tl.where(seen, scores, -1e30)
        factor = 1.0 if SOFTCAP else scale
        higher = tl.maximum(most, tl.max(scores, 1) * factor)
        weights = tl.exp2(scores * factor - higher[:, None])
        fade = tl.exp2(most - higher)
        total = total * fade + tl.sum(weights, 1)
        most = higher
        mixed = mixed * fade[:, None]
        v = _load(v_cache + places, inside, MASKED or HEAD_DIM < BLOCK_DIM)
        if QUANTIZED:
            v = widen(v, FP8)
            weights *= _load(v_scales + scale_places, known, MASKED)[None, :]
        mixed = tl.dot(weights.to(weight_dtype), v.to(weight_dtype), mixed, input_precision="ieee")
    return mixed, most, total


@jit
def _paged_prefill_kernel(
    q,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    block_tables,
    query_starts,
    seq_lens,
    out,
    scale,
    softcap,
    window,
    sequences,
    q_token,
    q_head,
    cache_block,
    cache_head,
    cache_offset,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    QUANTIZED: tl.constexpr,
    FP8: tl.constexpr,
):
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    # The last tiles of a chunk see most keys, and begin first.
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    kv_head = tl.program_id(0)
    sequence = _find(query_starts, sequences, tile, TOKENS)
    start = tl.load(query_starts + sequence).to(tl.int32)
    new = tl.load(query_starts + sequence + 1).to(tl.int32) - start
    first = (tile - start // TOKENS - sequence) * TOKENS
    if first >= new:
        return
    before = tl.load(seq_lens + sequence).to(tl.int32) - new
    last = tl.minimum(first + TOKENS, new) - 1

    # Rows that are left over repeat the last token's, and are not stored.
    rows = tl.arange(0, BLOCK_M)
    token = tl.minimum(first + rows // GROUP, last)
    head = kv_head * GROUP + rows % GROUP
    dims = tl.arange(0, BLOCK_DIM)
    inside = (dims < HEAD_DIM)[None, :]
    row = (start + token).to(tl.int64)
    queries = tl.load(q + (row * q_token + head * q_head)[:, None] + dims[None, :], inside, other=0.0)
    positions = before + token

    # Tiles of keys count from the sequence's start. All rows see all keys of those from ``full_begin`` to ``full_end``.
    seen_end = before + last + 1
    full_end = (before + first + 1) // BLOCK_N * BLOCK_N
    seen_begin = 0
    begin = 0
    full_begin = 0
    if WINDOW:
        seen_begin = tl.maximum(before + first + 1 - window, 0)
        begin = seen_begin // BLOCK_N * BLOCK_N
        full_begin = tl.cdiv(tl.maximum(seen_end - window, 0), BLOCK_N) * BLOCK_N

    table = block_tables + sequence.to(tl.int64) * table_stride
    k_cache += kv_head.to(tl.int64) * cache_head
    v_cache += kv_head.to(tl.int64) * cache_head
    k_scales += kv_head * BLOCK_SIZE
    v_scales += kv_head * BLOCK_SIZE
    mixed = tl.zeros((BLOCK_M, BLOCK_DIM), tl.float32)
    most = tl.full((BLOCK_M,), -1e20, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for part in tl.static_range(0 if WINDOW else 1, 3):
        if part == 0:
            low, high = begin, tl.minimum(full_begin, full_end)
        elif part == 1:
            low, high = full_begin, full_end
        else:
            low, high = full_end, seen_end
        mixed, most, total = _attend_tiles(
            mixed,
            most,
            total,
            queries,
            positions,
            low,
            high,
            seen_begin,
            seen_end,
            k_cache,
            v_cache,
            k_scales,
            v_scales,
            table,
            scale,
            softcap,
            window,
            cache_block,
            cache_offset,
            KV_HEADS * BLOCK_SIZE,
            BLOCK_SIZE,
            HEAD_DIM,
            BLOCK_DIM,
            BLOCK_N,
            WINDOW,
            SOFTCAP,
            QUANTIZED,
            FP8,
            part != 1,
        )
    stored = (rows < TOKENS * GROUP) & (first + rows // GROUP < new)
    places = (row * (KV_HEADS * GROUP) + head)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out + places, (mixed / total[:, None]).to(out.dtype.element_ty), stored[:, None] & inside)


_LOG2_E = 1.4426950408889634


def paged_prefill_triton(
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
    """``q`` may lie apart by token and head; the caches lie alike, the scales without gaps. A ``tile`` below ``TILE``
    makes smaller ones, for a batch of which most chunks are as short."""
    tokens, heads, head_dim = q.shape
    _, kv_heads, block_size, _ = k_cache.shape
    sequences = len(seq_lens)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not tokens:
        return out
    quantized = k_scales is not None
    fp8 = k_cache.dtype == torch.float8_e4m3fn
    if quantized:
        k_cache, v_cache = k_cache.view(torch.int8), v_cache.view(torch.int8)
    constants, options = _config(arch(q.device), q.dtype, head_dim, heads // kv_heads, tile, quantized)
    grid = kv_heads, triton.cdiv(tokens, constants["BLOCK_M"] // constants["GROUP"]) + sequences
    _paged_prefill_kernel[grid](
        q,
        k_cache,
        v_cache,
        k_scales if quantized else k_cache,
        v_scales if quantized else v_cache,
        block_tables,
        query_starts,
        seq_lens,
        out,
        scale * _LOG2_E * (2 / softcap if softcap else 1),
        (softcap or 0.0) * _LOG2_E,
        window or 0,
        sequences,
        *q.stride()[:2],
        *k_cache.stride()[:3],
        block_tables.stride(0),
        KV_HEADS=kv_heads,
        BLOCK_SIZE=block_size,
        WINDOW=window is not None,
        SOFTCAP=softcap is not None,
        QUANTIZED=quantized,
        FP8=fp8,
        **constants,
        **options,
    )
    return out


_CONFIGS = {
    "sm_80": {64: (128, 64, 4, 3), 128: (128, 64, 8, 3), 256: (64, 32, 4, 2)},
    "sm_90": {64: (128, 128, 8, 3), 128: (128, 128, 8, 2), 256: (128, 64, 8, 2)},
    "sm_100": {64: (128, 128, 8, 3), 128: (128, 128, 8, 2), 256: (128, 64, 8, 2)},
    "gfx942": {64: (128, 64, 4, 2), 128: (128, 64, 4, 1), 256: (64, 32, 4, 1)},
}
"""Rows of queries (tokens and the heads that share keys), keys, warps and stages, by the head's padded size, for 16
bits."""


def _config(
    arch: str, dtype: torch.dtype, head_dim: int, group: int, tile: int, quantized: bool
) -> tuple[dict[str, int], dict[str, int]]:
    block_dim = max(64, triton.next_power_of_2(head_dim))
    rows, keys, warps, stages = _CONFIGS[arch][block_dim]
    if dtype == torch.float32:
        rows, keys, warps, stages = 32, 32, 4, 1
    if tile < TILE:
        rows = min(rows, max(16, triton.next_power_of_2(tile * group)))
        warps = min(warps, 4)
    rows = max(rows, triton.next_power_of_2(group))
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_DIM": block_dim,
        "BLOCK_M": rows,
        "BLOCK_N": keys,
    }
    return constants, {"num_warps": warps, "num_stages": stages}


_VARIANTS = [
    ("bf16", 128, 4, "", "", TILE),
    ("bf16", 128, 4, "", "window", TILE),
    ("bf16", 128, 4, "int8", "", TILE),
    ("bf16", 128, 4, "fp8", "", TILE),
    ("fp16", 128, 8, "", "", TILE),
    ("fp16", 128, 4, "int8", "window", TILE),
    ("bf16", 64, 7, "", "", TILE),
    ("bf16", 80, 1, "", "", TILE),
    ("bf16", 96, 1, "", "window", TILE),
    ("bf16", 256, 2, "", "window softcap", TILE),
    ("bf16", 256, 4, "fp8", "window softcap", TILE),
    ("bf16", 128, 4, "", "", 16),
]


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    strides = ("q_token", "q_head", "cache_block", "cache_head", "cache_offset", "table_stride")
    for dtype, head_dim, group, stored, features, tile in _VARIANTS:
        constants, options = _config(
            arch, {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype], head_dim, group, tile, bool(stored)
        )
        cache = "*i8" if stored else f"*{dtype}"
        yield Variant(
            " ".join(
                filter(None, (dtype, stored, f"head_dim={head_dim} group={group}", features, f"tile={tile}"))
            ),
            _paged_prefill_kernel,
            {
                "q": f"*{dtype}",
                **dict.fromkeys(("k_cache", "v_cache"), cache),
                **dict.fromkeys(("k_scales", "v_scales"), "*fp32" if stored else cache),
                **dict.fromkeys(("block_tables", "query_starts", "seq_lens"), "*i64"),
                "out": f"*{dtype}",
                **dict.fromkeys(("scale", "softcap"), "fp32"),
                **dict.fromkeys(("window", "sequences", *strides), "i32"),
            },
            {
                **constants,
                "KV_HEADS": 8,
                "BLOCK_SIZE": 16,
                "WINDOW": "window" in features,
                "SOFTCAP": "softcap" in features,
                "QUANTIZED": bool(stored),
                "FP8": stored == "fp8",
            },
            **options,
            dot=True,
            unaligned=frozenset({"window", "sequences", "table_stride", "query_starts", "seq_lens"}),
        )
