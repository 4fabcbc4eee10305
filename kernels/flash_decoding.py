"""Split-KV flash decoding: ``paged_decode`` in Triton. Formula and shapes are in paged_decode.py.

The algorithm is Flash-Decoding (Dao et al., 2023, https://pytorch.org/blog/flash-decoding) over paged blocks.
Position ``a`` is in split ``a // SPLIT``, whatever the batch, so that a row's result depends on its sequence alone. Of
split j a program keeps, for all heads and new tokens that read the same keys,

    m[j] = max(x),   l[j] = Σ 2^(x - m[j]),   o[j] = Σ 2^(x - m[j]) V      over scores x = log2(e) * cap(scale * q · K)
    out  = Σ 2^(m[j] - max(m)) o[j] / Σ 2^(m[j] - max(m)) l[j]             in a second kernel

As many programs as the chip holds at a time walk over the items of work (split, head of keys), which they count from
``seq_lens`` themselves: the grid follows from shapes alone, and neither many short sequences nor a long one leave
the chip idle. A sequence of one split is finished in the first kernel. An empty slot (``seq_lens`` 0, padding of
a CUDA graph's batch) gives zeros. Only positions that some token sees are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from kernels.kv_splits import (
    count_splits,
    decode_workspace,
    first_split,
    most_splits,
    reduce_splits,
    slots_for,
    split_size,
)
from kernels.launch import Variant, arch, jit, tl, triton
from kernels.paged_kv import PagedKV


@jit
def _halves(pairs, FP8: tl.constexpr):
    """The numbers in the lower and upper bytes of int16, as float16: float8's smaller by 2**8."""
    if FP8:
        # Where float16 has its sign, exponent and mantissa they are right but for the exponent's bias.
        lower, upper = ((pairs << 8) >> 1) & -0x4080, (pairs >> 1) & -0x4080
        return lower.to(tl.float16, bitcast=True), upper.to(tl.float16, bitcast=True)
    # 1024 has its last bit of mantissa at 1.
    lower, upper = ((pairs ^ 0x80) & 0xFF) | 0x6400, (((pairs >> 8) ^ 0x80) & 0xFF) | 0x6400
    return lower.to(tl.float16, bitcast=True) - 1152.0, upper.to(tl.float16, bitcast=True) - 1152.0


_VARYING = ("block_tables", "seq_lens", "sequences", "max_splits", "table_stride", "new")


@jit(varying=_VARYING)
def _paged_decode_kernel(
    q,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    block_tables,
    seq_lens,
    out,
    partial,
    sequences,
    max_splits,
    scale,
    cap,
    q_token,
    q_head,
    table_stride,
    cache_block,
    cache_head,
    cache_offset,
    new,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    FP8: tl.constexpr,
    SEQUENCES: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    IN_BITS: tl.constexpr = FP8 and k_cache.dtype.element_ty == tl.int8
    KEY_FACTOR: tl.constexpr = 256.0 if IN_BITS else 1.0
    VALUE_FACTOR: tl.constexpr = 256.0 if FP8 else 1.0
    wide: tl.constexpr = tl.float16 if QUANTIZED and q.dtype.element_ty != tl.float32 else q.dtype.element_ty
    parts = (new * GROUP + ROWS - 1) // ROWS
    slots = tl.arange(0, SEQUENCES)
    used = slots < sequences
    lens = tl.load(seq_lens + slots, used, other=0).to(tl.int32)
    counts = tl.where(used, count_splits(lens, new, SPLIT, WINDOW), 0)
    # A sequence for whose splits there is no room is one item.
    items = tl.where(tl.cumsum(counts, 0) <= max_splits, counts, tl.minimum(counts, 1))
    ends = tl.cumsum(items, 0)
    dims, halves = tl.arange(0, DIM), tl.arange(0, DIM // 2)
    for work in range(tl.program_id(0), tl.sum(items, 0) * KV_HEADS * parts, tl.num_programs(0)):
        item, head, part = work // (KV_HEADS * parts), work // parts % KV_HEADS, work % parts
        passed = ends <= item
        sequence = tl.sum(passed.to(tl.int32), 0)
        before = tl.max(tl.where(passed, ends, 0), 0)
        split = tl.min(tl.where(passed, 2147483647, ends), 0) - before
        length = tl.load(seq_lens + sequence).to(tl.int32)
        first = first_split(length, new, SPLIT, WINDOW)
        whole = split == 1
        begin = (first + item - before) * SPLIT
        end = length if whole else tl.minimum(begin + SPLIT, length)
        if WINDOW:
            lowest = tl.maximum(length - new + 1 - WINDOW, 0)
            begin = tl.maximum(begin, lowest // TILE * TILE)
        table = block_tables + sequence.to(tl.int64) * table_stride
        kv_positions = begin + tl.arange(0, TILE)
        block = tl.load(table + kv_positions // BLOCK_SIZE, kv_positions < end, other=0)

        rows = part * ROWS + tl.arange(0, ROWS)
        inside = (rows < new * GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
        position = length - new + rows // GROUP
        token = sequence.to(tl.int64) * new + rows // GROUP
        row_head = head * GROUP + rows % GROUP
        query = tl.load(
            q + token[:, None] * q_token + row_head[:, None] * q_head + dims[None, :], inside, other=0.0
        )
        factor = tl.full([ROWS], 1.0, tl.float32) * scale
        if QUANTIZED:
            # float16 holds all numbers of 8 bits, and a query's if they are made to lie within 1.
            most = tl.maximum(tl.max(tl.abs(query.to(tl.float32)), 1), 1e-30)
            query = (query.to(tl.float32) / most[:, None]).to(wide)
            factor *= most
        m_i = tl.full([ROWS], -1e28, tl.float32)
        l_i = tl.zeros([ROWS, TILE], tl.float32)
        acc = tl.zeros([ROWS, DIM // 2 if QUANTIZED else DIM], tl.float32)
        acc_odd = acc
        for at in range(begin, end, TILE):
            kv_positions = at + tl.arange(0, TILE)
            stored = kv_positions < length
            if WINDOW:
                stored &= kv_positions >= lowest
            offset = kv_positions % BLOCK_SIZE
            kv_offsets = block.to(tl.int64) * cache_block + head * cache_head + offset * cache_offset
            scale_offsets = (block.to(tl.int64) * KV_HEADS + head) * BLOCK_SIZE + offset
            # The next tile's, in time: where its keys are must be known before they can be asked for.
            block = tl.load(table + (kv_positions + TILE) // BLOCK_SIZE, kv_positions + TILE < end, other=0)
            read = stored[:, None] & (dims < HEAD_DIM)[None, :]
            keys = tl.load(k_cache + kv_offsets[:, None] + dims[None, :], read, other=0.0)
            if IN_BITS:
                keys = ((keys.to(tl.int16) << 7) & -0x4001).to(tl.float16, bitcast=True)
            scores = tl.dot(query, tl.trans(keys.to(wide)), input_precision="ieee") * factor[:, None]
            if QUANTIZED:
                scores *= tl.load(k_scales + scale_offsets, stored, other=0.0)[None, :] * KEY_FACTOR
            if CAPPED:
                scores = cap - cap * 2.0 / (tl.exp2(tl.minimum(scores, 60.0)) + 1.0)
            seen = kv_positions[None, :] <= position[:, None]
            if WINDOW:
                seen &= kv_positions[None, :] > position[:, None] - WINDOW
            scores = tl.where(seen, scores, -1e30)
            if QUANTIZED:
                # The largest weight times its scale is 1, so that all fit float16.
                value_scale = tl.load(v_scales + scale_offsets, stored, other=0.0) * VALUE_FACTOR
                value_scale = tl.maximum(value_scale, 1e-18)
                m_new = tl.maximum(m_i, tl.max(scores + tl.log2(value_scale)[None, :], 1))
            else:
                m_new = tl.maximum(m_i, tl.max(scores, 1))
            weights = tl.exp2(scores - m_new[:, None])
            alpha = tl.exp2(m_i - m_new)[:, None]
            m_i = m_new
            l_i = l_i * alpha + weights
            if QUANTIZED:
                # By pairs of numbers: no chip transposes single bytes on their way from shared memory.
                pairs = tl.load(
                    v_cache + (kv_offsets // 2)[:, None] + halves[None, :],
                    stored[:, None] & (halves < HEAD_DIM // 2)[None, :],
                    other=0,
                )
                lower, upper = _halves(pairs, FP8)
                weights = (weights * value_scale[None, :]).to(wide)
                acc = tl.dot(weights, lower.to(wide), acc * alpha, input_precision="ieee")
                acc_odd = tl.dot(weights, upper.to(wide), acc_odd * alpha, input_precision="ieee")
            else:
                values = tl.load(v_cache + kv_offsets[:, None] + dims[None, :], read, other=0.0)
                acc = tl.dot(weights.to(wide), values, acc * alpha, input_precision="ieee")

        if QUANTIZED:
            acc = tl.interleave(acc, acc_odd)
        l_sum = tl.sum(l_i, 1)
        if whole:
            acc = acc / tl.where(l_sum > 0.0, l_sum, 1.0)[:, None]
            to = out + (token * HEADS + row_head) * HEAD_DIM
            tl.store(to[:, None] + dims[None, :], acc.to(out.dtype.element_ty), inside)
        else:
            row = item * (new * HEADS) + rows // GROUP * HEADS + row_head
            result = partial + row.to(tl.int64) * (HEAD_DIM + 4)
            tl.store(result[:, None] + dims[None, :], acc, inside)
            tl.store(result + HEAD_DIM, m_i, rows < new * GROUP)
            tl.store(result + HEAD_DIM + 1, l_sum, rows < new * GROUP)


_PROGRAMS = 2
"""A multiprocessor, on all chips: as many as its registers hold. Their tiles take at most its shared memory."""
_STAGES = {"sm_80": 3, "sm_90": 3, "sm_100": 3, "gfx942": 2}
"""Of the pipeline that reads tiles: two are on their way while one is multiplied, or one where memory is small."""
_NUMBERS = {"sm_80": 8192, "sm_90": 8192, "sm_100": 8192, "gfx942": 4096}
"""Of a tile of keys, at most: as many as registers take beside 16 rows. Beside more it is the smallest of these."""


def _tiles(rows: int, head_dim: int, itemsize: int, chip: str) -> dict[str, int]:
    """For ``rows`` (new tokens * group) over a cache of numbers of ``itemsize`` bytes."""
    dim = triton.next_power_of_2(head_dim)
    # More would not fit the registers: their keys are read once more.
    most = (_NUMBERS[chip] // 2 if itemsize == 1 else 8192) // dim
    rows = max(16, min(64, most, triton.next_power_of_2(rows)))
    numbers = _NUMBERS[chip] if rows == 16 else min(_NUMBERS.values())
    return {
        "ROWS": rows,
        "DIM": dim,
        "TILE": max(16, min(64, numbers // dim, 16384 // (dim * itemsize))),
        "SPLIT": split_size(head_dim, itemsize),
    }


@cache
def _processors(device: torch.device) -> int:
    """The interpreter runs one program after another: the fewer there are, the more each has to do."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def paged_decode_triton(
    q: Tensor,
    kv: PagedKV,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    workspace: Tensor | None = None,
) -> Tensor:
    """``q`` may lie apart by token and head; the caches lie alike, the scales without gaps. ``workspace``: see
    ``decode_workspace``."""
    tokens, heads, head_dim = q.shape
    k_cache, v_cache, block_tables, seq_lens = kv.keys, kv.values, kv.block_tables, kv.seq_lens
    quantized = kv.key_scales is not None
    _, kv_heads, block_size, _ = k_cache.shape
    out = torch.empty(tokens, heads, head_dim, dtype=q.dtype, device=q.device)
    sequences = len(seq_lens)
    if not tokens:
        return out
    new = tokens // sequences
    chip = arch(q.device)
    rows = new * heads // kv_heads
    tiles = _tiles(rows, head_dim, k_cache.itemsize, chip)
    capacity = block_tables.shape[1] * block_size
    most = most_splits(capacity, tiles["SPLIT"], new, window)
    if most > 1 and workspace is None:
        workspace = decode_workspace(q, k_cache, sequences, capacity, window)
    elif workspace is None:
        workspace = torch.empty(0, dtype=torch.float32, device=q.device)
    strides = k_cache.stride()[:3]
    fp8 = k_cache.dtype == torch.float8_e4m3fn
    if quantized:
        v_cache = v_cache.view(torch.int16)
    if fp8 and not _converts(chip):
        k_cache = k_cache.view(torch.int8)
    shape = {
        "new": new,
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "WINDOW": window or 0,
        "SEQUENCES": slots_for(sequences),
    }
    factor = 1.4426950408889634
    work = sequences * most * kv_heads * triton.cdiv(rows, tiles["ROWS"])
    _paged_decode_kernel[(min(work, _PROGRAMS * _processors(q.device)),)](
        q,
        k_cache,
        v_cache,
        kv.key_scales if quantized else q,
        kv.value_scales if quantized else q,
        block_tables,
        seq_lens,
        out,
        workspace,
        sequences,
        len(workspace),
        scale * factor if softcap is None else scale * factor * 2 / softcap,
        0.0 if softcap is None else softcap * factor,
        *q.stride()[:2],
        block_tables.stride(0),
        *strides,
        **shape,
        KV_HEADS=kv_heads,
        BLOCK_SIZE=block_size,
        CAPPED=softcap is not None,
        QUANTIZED=quantized,
        FP8=fp8,
        **tiles,
        num_warps=4,
        num_stages=_STAGES[chip],
    )
    if most > 1:
        reduce_splits(workspace, seq_lens, out, shape, tiles["SPLIT"])
    return out


def _converts(chip: str) -> bool:
    """Whether it has instructions for float8_e4m3fn."""
    return chip in ("sm_90", "sm_100")


_SHAPES = (
    # dtype, cache, head_dim, heads, kv_heads, new, window, capped
    ("bf16", "bf16", 64, 32, 8, 1, 0, False),
    ("bf16", "bf16", 128, 32, 8, 1, 0, False),
    ("bf16", "bf16", 128, 32, 8, 8, 0, False),
    ("bf16", "bf16", 128, 32, 8, 16, 0, False),
    ("bf16", "bf16", 256, 16, 2, 8, 4096, True),
    ("bf16", "bf16", 128, 32, 32, 1, 4096, False),
    ("bf16", "bf16", 256, 16, 2, 1, 4096, True),
    ("fp16", "fp16", 80, 32, 32, 16, 0, False),
    ("bf16", "fp8", 128, 32, 8, 1, 0, False),
    ("bf16", "fp8", 128, 32, 8, 16, 0, False),
    ("bf16", "fp8", 256, 16, 2, 4, 4096, True),
    ("bf16", "int8", 128, 32, 8, 1, 0, False),
)


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    integers = ("sequences", "max_splits", "table_stride", "new")
    strides = ("q_token", "q_head", "cache_block", "cache_head", "cache_offset")
    for dtype, stored, head_dim, heads, kv_heads, new, window, capped in _SHAPES:
        quantized = stored != dtype
        tiles = _tiles(new * heads // kv_heads, head_dim, 1 if quantized else 2, arch)
        element = {"int8": "i8", "fp8": "fp8e4nv" if _converts(arch) else "i8"}.get(stored, stored)
        pointers = {
            **dict.fromkeys(("q", "out"), f"*{dtype}"),
            "k_cache": f"*{element}",
            "v_cache": "*i16" if quantized else f"*{dtype}",
            **dict.fromkeys(("k_scales", "v_scales"), "*fp32" if quantized else f"*{dtype}"),
            **dict.fromkeys(("block_tables", "seq_lens"), "*i64"),
            "partial": "*fp32",
        }
        shape = {"HEADS": heads, "HEAD_DIM": head_dim, "WINDOW": window, "SEQUENCES": 1024}
        name = (
            f"{dtype} over {stored} head_dim={head_dim} group={heads // kv_heads} new={new} window={window}"
        )
        yield Variant(
            name,
            _paged_decode_kernel,
            {
                **pointers,
                **dict.fromkeys(integers + strides, "i32"),
                **dict.fromkeys(("scale", "cap"), "fp32"),
            },
            {
                **shape,
                **tiles,
                "KV_HEADS": kv_heads,
                "BLOCK_SIZE": 16,
                "CAPPED": capped,
                "QUANTIZED": quantized,
                "FP8": stored == "fp8",
            },
            num_warps=4,
            num_stages=_STAGES[arch],
            dot=True,
            unaligned=frozenset(_VARYING),
        )
