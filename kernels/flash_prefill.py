"""The Triton kernel of ``paged_prefill``: flash attention (https://arxiv.org/abs/2307.08691) over block tables.

A program has a tile of query rows (some tokens of one sequence, with all heads of a group) and iterates over the tiles
of keys that they see, in three phases: tiles cut by the window, tiles that all rows see whole (no mask), and tiles at
the diagonal. It keeps each row's running maximum, sum of weights and weighted sum of values. Loads are pipelined: the
next tile's keys and values are in flight while one is multiplied, and so are the block ids after these. A block is
``block_size * head_dim`` contiguous elements, and a tile gathers several.

The grid is ``kv_heads`` by the most tiles that chunks with this many tokens in all can need, so that the host need not
know their lengths. A program finds its sequence by binary search, and may have none. Long tiles are launched first.

Tiles of queries are counted from the chunk's start and tiles of keys from the sequence's, and a tile that a row does
not see leaves its sums unchanged, to the bit. So a token's result depends on the tile sizes, that is on the dtypes, the
heads' shape, the chip and ``tile``, but not on the rest of the batch, nor on how its prompt is chunked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from kernels.int4_kv import load_int4_keys, load_int4_values
from kernels.launch import Variant, arch, jit, tl, triton
from kernels.paged_decode import TILE
from kernels.paged_kv import PagedKV
from kernels.store_kv import widen

_LOG2_E = 1.4426950408889634

_Table = Mapping[str, Mapping[int, tuple[int, int, int, int]]]
_CONFIGS: _Table = {
    "sm_80": {64: (128, 64, 8, 3), 128: (128, 64, 8, 3), 256: (64, 32, 8, 2)},
    "sm_90": {64: (128, 128, 8, 3), 128: (128, 128, 8, 3), 256: (128, 64, 8, 2)},
    "sm_100": {64: (128, 128, 8, 3), 128: (128, 128, 8, 3), 256: (128, 32, 8, 3)},
    "gfx942": {64: (128, 32, 4, 2), 128: (128, 32, 4, 2), 256: (64, 32, 4, 1)},
}
"""(BLOCK_M, BLOCK_N, warps, stages) by the padded head size, for 16-bit caches. Each stage has a tile of keys and
values in shared memory, which on Hopper fills nearly all of it; accumulators are in registers, without spills."""
_QUANTIZED: _Table = {
    "sm_80": {64: (128, 32, 8, 3), 128: (64, 64, 8, 3), 256: (32, 64, 8, 2)},
    "sm_90": {64: (128, 64, 8, 3), 128: (128, 32, 8, 3), 256: (64, 16, 8, 3)},
    "sm_100": {64: (128, 64, 8, 3), 128: (128, 64, 8, 3), 256: (64, 64, 8, 3)},
    "gfx942": {64: (128, 32, 4, 2), 128: (128, 32, 4, 1), 256: (32, 32, 4, 1)},
}
"""For 8-bit caches, widened in registers: the largest tiles without spills under both Triton 3.6 and 3.7."""
_INT4: _Table = {**_QUANTIZED, "sm_80": {64: (64, 32, 8, 2), 128: (64, 32, 8, 2), 256: (32, 32, 8, 2)}}
_WIDE = {64: (32, 32, 4, 1), 128: (16, 16, 4, 1), 256: (16, 16, 4, 1)}
"""For float32, whose products are exact and slow: for tests."""


def _config(
    arch: str, dtype: torch.dtype, head_dim: int, group: int, tile: int, table: _Table
) -> tuple[dict[str, int], dict[str, int]]:
    """A launch's constants and options. ``table``: by chip, as ``_CONFIGS``."""
    block_dim = max(64, triton.next_power_of_2(head_dim))
    chosen = _WIDE if dtype == torch.float32 else table[arch]
    rows, keys, warps, stages = chosen[block_dim]
    if tile < TILE:
        rows = min(rows, max(16, triton.next_power_of_2(tile * group)))
        keys, warps = min(keys, 32), min(warps, 4)
    rows = max(rows, triton.next_power_of_2(group))
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_DIM": block_dim,
        "BLOCK_M": rows,
        "BLOCK_N": keys,
    }
    return constants, {"num_warps": warps, "num_stages": stages}


@jit
def _find_sequence(query_starts, sequences, tile, TOKENS: tl.constexpr):
    """The sequence of a tile. A sequence's first tile is ``start // TOKENS + sequence``, so that each has enough."""
    low = 0
    high = sequences
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(query_starts + middle).to(tl.int32) // TOKENS + middle <= tile
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@jit
def _load(pointers, mask, MASKED: tl.constexpr):
    return tl.load(pointers, mask, other=0) if MASKED else tl.load(pointers)


_VARYING = ("block_tables", "query_starts", "seq_lens", "sequences", "table_stride")


@jit(varying=_VARYING)
def _paged_prefill_kernel(
    q,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    sinks,
    block_tables,
    query_starts,
    seq_lens,
    out,
    scale,
    softcap,
    window,
    sequences,
    q_stride,
    q_head_stride,
    cache_block,
    cache_head,
    cache_offset,
    table_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    FP8: tl.constexpr,
):
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    # Weights times scales may underflow float16.
    INT4: tl.constexpr = k_cache.dtype.element_ty == tl.uint8
    BY_TOKEN: tl.constexpr = k_scales is not None and not INT4
    underflows: tl.constexpr = BY_TOKEN and q.dtype.element_ty == tl.float16
    weight_dtype: tl.constexpr = tl.bfloat16 if underflows else q.dtype.element_ty
    kv_head, kv_heads = tl.program_id(0), tl.num_programs(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    sequence = _find_sequence(query_starts, sequences, tile, TOKENS)
    start = tl.load(query_starts + sequence).to(tl.int32)
    new = tl.load(query_starts + sequence + 1).to(tl.int32) - start
    first = (tile - start // TOKENS - sequence) * TOKENS
    if first >= new:
        return
    before = tl.load(seq_lens + sequence).to(tl.int32) - new
    last = tl.minimum(first + TOKENS, new) - 1

    # Surplus rows repeat the last token's and are not stored.
    rows = tl.arange(0, BLOCK_M)
    token = tl.minimum(first + rows // GROUP, last)
    head = kv_head * GROUP + rows % GROUP
    dims = tl.arange(0, BLOCK_DIM)
    dim_mask = (dims < HEAD_DIM)[None, :]
    row = (start + token).to(tl.int64)
    queries = _load(
        q + (row * q_stride + head * q_head_stride)[:, None] + dims[None, :], dim_mask, HEAD_DIM < BLOCK_DIM
    )
    positions = before + token

    # Keys that any row sees; and from ``full_begin`` to ``full_end`` whole tiles that all rows see.
    visible_end = before + last + 1
    full_end = (before + first + 1) // BLOCK_N * BLOCK_N
    visible_begin = 0
    full_begin = 0
    if window is not None:
        visible_begin = tl.maximum(before + first + 1 - window, 0)
        full_begin = tl.cdiv(tl.maximum(visible_end - window, 0), BLOCK_N) * BLOCK_N

    table = block_tables + tl.cast(sequence, tl.int64) * table_stride
    if not INT4:
        k_cache += kv_head.to(tl.int64) * cache_head
        v_cache += kv_head.to(tl.int64) * cache_head
    columns = tl.arange(0, BLOCK_N)
    # Without a softcap the scale is applied in the exponent.
    factor = scale if softcap is None else 1.0
    acc = tl.zeros((BLOCK_M, BLOCK_DIM), tl.float32)
    m_i = tl.full((BLOCK_M,), -1e20, tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    for phase in tl.static_range(1 if window is None else 0, 3):
        if phase == 0:
            begin, end = visible_begin // BLOCK_N * BLOCK_N, tl.minimum(full_begin, full_end)
        elif phase == 1:
            begin, end = full_begin, full_end
        else:
            begin, end = full_end, visible_end
        next_keys = begin + columns
        next_blocks = tl.load(
            table + next_keys // BLOCK_SIZE, (next_keys >= visible_begin) & (next_keys < end), other=0
        )
        next_blocks = next_blocks.to(tl.int32)
        for tile_start in tl.range(begin, end, BLOCK_N):
            keys = tile_start + columns
            key_mask = (keys >= visible_begin) & (keys < visible_end)
            blocks = next_blocks.to(tl.int64)
            next_keys = keys + BLOCK_N
            next_blocks = tl.load(table + next_keys // BLOCK_SIZE, next_keys < end, other=0).to(tl.int32)
            offsets = (columns if BLOCK_N % BLOCK_SIZE == 0 else keys) % BLOCK_SIZE
            kv_offsets = (blocks * cache_block)[:, None] + ((offsets * cache_offset)[:, None] + dims[None, :])
            if INT4:
                block_rows = blocks * kv_heads + kv_head
                within = dim_mask & (offsets >= 0)[:, None]
                k = load_int4_keys(k_cache, k_scales, block_rows, offsets, dims, within, BLOCK_SIZE, HEAD_DIM)
            else:
                k = _load(k_cache + kv_offsets, dim_mask, HEAD_DIM < BLOCK_DIM)
            if BY_TOKEN:
                k = widen(k, FP8)
            scores = tl.dot(queries, k.to(queries.dtype).T, input_precision="ieee")
            if BY_TOKEN:
                scale_offsets = (blocks * kv_heads + kv_head) * BLOCK_SIZE + offsets
                scores *= tl.load(k_scales + scale_offsets)[None, :]
            if softcap is not None:
                # tanh(x) = 1 - 2 / (exp(2x) + 1)
                scores = softcap - 2 * softcap / (tl.exp2(tl.minimum(scores * scale, 126.0)) + 1)
            if phase != 1:
                visible = keys[None, :] <= positions[:, None]
                if window is not None:
                    visible &= keys[None, :] > positions[:, None] - window
                scores = tl.where(visible, scores, -1e30)
            m_new = tl.maximum(m_i, tl.max(scores, 1) * factor)
            weights = tl.exp2(scores * factor - m_new[:, None])
            alpha = tl.exp2(m_i - m_new)
            l_i = l_i * alpha + tl.sum(weights, 1)
            m_i = m_new
            acc = acc * alpha[:, None]
            if INT4:
                within = key_mask[:, None] & dim_mask
                v = load_int4_values(
                    v_cache, v_scales, block_rows, offsets, dims, within, BLOCK_SIZE, HEAD_DIM
                )
            elif phase == 1:
                v = _load(v_cache + kv_offsets, dim_mask, HEAD_DIM < BLOCK_DIM)
            else:
                # Unwritten slots may hold NaN, which a weight of zero would not remove.
                v = tl.load(v_cache + kv_offsets, key_mask[:, None] & dim_mask, other=0)
            if BY_TOKEN:
                v = widen(v, FP8)
                weights *= _load(v_scales + scale_offsets, key_mask, phase != 1)[None, :]
            acc = tl.dot(weights.to(weight_dtype), v.to(weight_dtype), acc, input_precision="ieee")
    if sinks is not None:
        l_i += tl.exp2(tl.minimum(tl.load(sinks + head) * 1.4426950408889634 - m_i, 126.0))
    row_mask = (rows < TOKENS * GROUP) & (first + rows // GROUP < new)
    out_offsets = ((row * kv_heads * GROUP + head) * HEAD_DIM)[:, None] + dims[None, :]
    tl.store(out + out_offsets, (acc / l_i[:, None]).to(out.dtype.element_ty), row_mask[:, None] & dim_mask)


def _table(kv: PagedKV) -> _Table:
    return _INT4 if kv.in_4_bits else _CONFIGS if kv.key_scales is None else _QUANTIZED


def paged_prefill_triton(
    q: Tensor,
    kv: PagedKV,
    query_starts: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    tile: int = TILE,
    sinks: Tensor | None = None,
) -> Tensor:
    """As ``paged_prefill``. ``q`` may be strided by token and head; both caches have the same strides, and the scales
    are contiguous. ``tile``: tokens of most chunks, where these are fewer than ``TILE``."""
    tokens, heads, head_dim = q.shape
    k_cache, v_cache = kv.keys, kv.values
    kv_heads, sequences = k_cache.shape[1], len(kv.seq_lens)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not tokens:
        return out
    fp8 = k_cache.dtype == torch.float8_e4m3fn
    if fp8:
        k_cache, v_cache = k_cache.view(torch.int8), v_cache.view(torch.int8)
    constants, options = _config(arch(q.device), q.dtype, head_dim, heads // kv_heads, tile, _table(kv))
    grid = kv_heads, triton.cdiv(tokens, constants["BLOCK_M"] // constants["GROUP"]) + sequences
    _paged_prefill_kernel[grid](
        q,
        k_cache,
        v_cache,
        kv.key_scales,
        kv.value_scales,
        sinks,
        kv.block_tables,
        query_starts,
        kv.seq_lens,
        out,
        scale * _LOG2_E if softcap is None else scale * _LOG2_E * 2 / softcap,
        None if softcap is None else softcap * _LOG2_E,
        window,
        sequences,
        *q.stride()[:2],
        *k_cache.stride()[:3],
        kv.block_tables.stride(0),
        BLOCK_SIZE=k_cache.shape[2],
        FP8=fp8,
        **constants,
        **options,
    )
    return out


_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_SHAPES = (
    ("bf16", "", 64, 7, "window", TILE),
    ("bf16", "", 64, 8, "window sinks", TILE),
    ("bf16", "", 128, 4, "", TILE),
    ("bf16", "", 128, 4, "", 16),
    ("fp16", "int8", 128, 4, "", TILE),
    ("bf16", "", 256, 2, "window softcap", TILE),
    ("bf16", "fp8", 256, 2, "window softcap", TILE),
    ("bf16", "int4", 128, 4, "", TILE),
    ("bf16", "int4", 64, 7, "window", 16),
)
_TABLES = {"": _CONFIGS, "int8": _QUANTIZED, "fp8": _QUANTIZED, "int4": _INT4}
_POINTERS = {"int8": "*i8", "fp8": "*i8", "int4": "*u8"}
_SCALES = {"int8": "*fp32", "fp8": "*fp32", "int4": "*fp16"}


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    strides = ("q_stride", "q_head_stride", "cache_block", "cache_head", "cache_offset", "table_stride")
    for dtype, stored, head_dim, group, features, tile in _SHAPES:
        constants, options = _config(arch, _DTYPES[dtype], head_dim, group, tile, _TABLES[stored])
        name = f"{dtype} {stored} head_dim={head_dim} group={group} {features} tile={tile}"
        types = {
            **dict.fromkeys(("q", "out"), f"*{dtype}"),
            **dict.fromkeys(("k_cache", "v_cache"), _POINTERS.get(stored, f"*{dtype}")),
            **dict.fromkeys(("block_tables", "query_starts", "seq_lens"), "*i64"),
            "scale": "fp32",
            **dict.fromkeys(("sequences", *strides), "i32"),
        }
        optional = {
            "k_scales": _SCALES.get(stored),
            "v_scales": _SCALES.get(stored),
            "window": "i32" if "window" in features else None,
            "softcap": "fp32" if "softcap" in features else None,
            "sinks": "*fp32" if "sinks" in features else None,
        }
        types.update((key, kind) for key, kind in optional.items() if kind)
        absent = {key: None for key, kind in optional.items() if kind is None}
        yield Variant(
            " ".join(name.split()),
            _paged_prefill_kernel,
            types,
            {**constants, **absent, "BLOCK_SIZE": 16, "FP8": stored == "fp8"},
            **options,
            dot=True,
            unaligned=frozenset({*_VARYING, *({"window"} & types.keys())}),
        )
