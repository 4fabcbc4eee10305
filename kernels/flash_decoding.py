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

from functools import cache

import torch
from torch import Tensor

from kernels.launch import arch, jit, tl, triton


@jit
def _first(lens, NEW: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr):
    """The first split that a sequence's new tokens see."""
    return tl.maximum(lens - NEW + 1 - WINDOW, 0) // SPLIT if WINDOW else lens * 0


@jit
def _count(lens, NEW: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr):
    """How many they see: at least one, which writes an empty slot's zeros."""
    return tl.maximum(tl.cdiv(lens, SPLIT) - _first(lens, NEW, SPLIT, WINDOW), 1)


@jit
def _widen(x, dtype: tl.constexpr):
    """Of a quantized cache, without the scales. float8's bytes, if given as int8, are smaller by 2**8."""
    if x.dtype == tl.uint8:
        bits = (x.to(tl.int8, bitcast=True).to(tl.int16) << 7) & -0x4001
        return bits.to(tl.float16, bitcast=True).to(dtype)
    return x.to(dtype)


@jit
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
    NEW: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    SEQUENCES: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    PARTS: tl.constexpr = (NEW * GROUP + ROWS - 1) // ROWS
    FACTOR: tl.constexpr = 256.0 if k_cache.dtype.element_ty == tl.uint8 else 1.0
    wide: tl.constexpr = tl.float16 if QUANTIZED and q.dtype.element_ty != tl.float32 else q.dtype.element_ty
    slots = tl.arange(0, SEQUENCES)
    used = slots < sequences
    lens = tl.load(seq_lens + slots, used, other=0).to(tl.int32)
    counts = tl.where(used, _count(lens, NEW, SPLIT, WINDOW), 0)
    # A sequence for whose splits there is no room is one item.
    items = tl.where(tl.cumsum(counts, 0) <= max_splits, counts, tl.minimum(counts, 1))
    ends = tl.cumsum(items, 0)
    dims = tl.arange(0, DIM)
    for work in range(tl.program_id(0), tl.sum(items, 0) * KV_HEADS * PARTS, tl.num_programs(0)):
        item, head, part = work // (KV_HEADS * PARTS), work // PARTS % KV_HEADS, work % PARTS
        sequence = tl.sum((ends <= item).to(tl.int32), 0)
        before = tl.sum(tl.where(slots < sequence, items, 0), 0)
        split = tl.sum(tl.where(slots == sequence, items, 0), 0)
        length = tl.sum(tl.where(slots == sequence, lens, 0), 0)
        first = _first(length, NEW, SPLIT, WINDOW)
        whole = split == 1
        begin = (first + item - before) * SPLIT
        end = length if whole else tl.minimum(begin + SPLIT, length)
        if WINDOW:
            lowest = tl.maximum(length - NEW + 1 - WINDOW, 0)
            begin = tl.maximum(begin, lowest // TILE * TILE)
        table = block_tables + sequence.to(tl.int64) * table_stride
        places = begin + tl.arange(0, TILE)
        block = tl.load(table + places // BLOCK_SIZE, places < end, other=0)

        rows = part * ROWS + tl.arange(0, ROWS)
        inside = (rows < NEW * GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
        position = length - NEW + rows // GROUP
        # Of the row in q and out, and of the head in it.
        token = sequence.to(tl.int64) * NEW + rows // GROUP
        row_head = head * GROUP + rows % GROUP
        query = tl.load(
            q + token[:, None] * q_token + row_head[:, None] * q_head + dims[None, :], inside, other=0.0
        )
        factor = tl.full([ROWS], 1.0, tl.float32) * scale
        if QUANTIZED:
            # In float16, which holds all numbers of 8 bits, and these as far as they are within 1.
            most = tl.maximum(tl.max(tl.abs(query.to(tl.float32)), 1), 1e-30)
            query = (query.to(tl.float32) / most[:, None]).to(wide)
            factor *= most
        top = tl.full([ROWS], -1e28, tl.float32)
        total = tl.zeros([ROWS, TILE], tl.float32)
        mixed = tl.zeros([ROWS, DIM], tl.float32)
        for at in range(begin, end, TILE):
            places = at + tl.arange(0, TILE)
            stored = places < length
            if WINDOW:
                stored &= places >= lowest
            offset = places % BLOCK_SIZE
            spots = block.to(tl.int64) * cache_block + head * cache_head + offset * cache_offset
            scale_spots = (block.to(tl.int64) * KV_HEADS + head) * BLOCK_SIZE + offset
            # The next tile's, in time: where its keys are must be known before they can be asked for.
            block = tl.load(table + (places + TILE) // BLOCK_SIZE, places + TILE < end, other=0)
            read = stored[:, None] & (dims < HEAD_DIM)[None, :]
            keys = tl.load(k_cache + spots[:, None] + dims[None, :], read, other=0.0)
            values = tl.load(v_cache + spots[:, None] + dims[None, :], read, other=0.0)
            scores = tl.dot(query, tl.trans(_widen(keys, wide)), input_precision="ieee") * factor[:, None]
            if QUANTIZED:
                scores *= tl.load(k_scales + scale_spots, stored, other=0.0)[None, :] * FACTOR
            if CAPPED:
                scores = cap - cap * 2.0 / (tl.exp2(tl.minimum(scores, 60.0)) + 1.0)
            seen = places[None, :] <= position[:, None]
            if WINDOW:
                seen &= places[None, :] > position[:, None] - WINDOW
            scores = tl.where(seen, scores, -1e30)
            if QUANTIZED:
                # The largest weight times its scale is 1, so that all fit float16.
                value_scale = tl.load(v_scales + scale_spots, stored, other=0.0) * FACTOR
                value_scale = tl.maximum(value_scale, 1e-18)
                highest = tl.maximum(top, tl.max(scores + tl.log2(value_scale)[None, :], 1))
            else:
                highest = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - highest[:, None])
            shrink = tl.exp2(top - highest)[:, None]
            top = highest
            total = total * shrink + weights
            if QUANTIZED:
                weights *= value_scale[None, :]
            mixed = tl.dot(weights.to(wide), _widen(values, wide), mixed * shrink, input_precision="ieee")

        summed = tl.sum(total, 1)
        if whole:
            mixed = mixed / tl.where(summed > 0.0, summed, 1.0)[:, None]
            to = out + (token * HEADS + row_head) * HEAD_DIM
            tl.store(to[:, None] + dims[None, :], mixed.to(out.dtype.element_ty), inside)
        else:
            row = item * (NEW * HEADS) + rows // GROUP * HEADS + row_head
            result = partial + row.to(tl.int64) * (HEAD_DIM + 4)
            tl.store(result[:, None] + dims[None, :], mixed, inside)
            tl.store(result + HEAD_DIM, top, rows < NEW * GROUP)
            tl.store(result + HEAD_DIM + 1, summed, rows < NEW * GROUP)


@jit
def _reduce_kernel(
    partial,
    seq_lens,
    out,
    sequences,
    max_splits,
    NEW: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SEQUENCES: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0)
    sequence = row // (NEW * HEADS)
    count = _count(tl.load(seq_lens + sequence).to(tl.int32), NEW, SPLIT, WINDOW)
    if count > 1:
        slots = tl.arange(0, SEQUENCES)
        used = slots < sequence
        counts = _count(tl.load(seq_lens + slots, used, other=0).to(tl.int32), NEW, SPLIT, WINDOW)
        before = tl.sum(tl.where(slots < sequence, counts, 0), 0)
        if before + count <= max_splits:
            dims = tl.arange(0, DIM)
            top = tl.full([1], -1e28, tl.float32)
            summed = tl.zeros([1], tl.float32)
            mixed = tl.zeros([DIM], tl.float32)
            for at in tl.range(0, count, 32, num_stages=STAGES):
                splits = at + tl.arange(0, 32)
                inside = splits < count
                rows = (before + splits).to(tl.int64) * (NEW * HEADS) + row % (NEW * HEADS)
                places = partial + rows * (HEAD_DIM + 4)
                parts = tl.load(
                    places[:, None] + dims[None, :], inside[:, None] & (dims < HEAD_DIM)[None, :], other=0.0
                )
                tops = tl.load(places + HEAD_DIM, inside, other=-1e30)
                sums = tl.load(places + HEAD_DIM + 1, inside, other=0.0)
                highest = tl.maximum(top, tl.max(tops, 0))
                weights = tl.exp2(tops - highest)
                shrink = tl.exp2(top - highest)
                top = highest
                summed = summed * shrink + tl.sum(sums * weights, 0)
                mixed = mixed * shrink + tl.sum(parts * weights[:, None], 0)
            mixed = mixed / tl.where(summed > 0.0, summed, 1.0)
            tl.store(
                out + row.to(tl.int64) * HEAD_DIM + dims, mixed.to(out.dtype.element_ty), dims < HEAD_DIM
            )


_PROGRAMS = {"sm_80": 2, "sm_90": 3, "sm_100": 3, "gfx942": 2}
"""A multiprocessor: as many as its shared memory holds the tiles of."""
_STAGES = {"sm_80": 3, "sm_90": 3, "sm_100": 3, "gfx942": 2}
"""Of the pipeline that reads tiles: two are on their way while one is multiplied, or one where memory is small."""


def _tiles(rows: int, head_dim: int, itemsize: int) -> dict[str, int]:
    """For ``rows`` (new tokens * group) over a cache of numbers of ``itemsize`` bytes: on all chips the same. A split
    is 64 KiB of keys: reading one takes some microseconds, far longer than to find it and to write its result."""
    dim = triton.next_power_of_2(head_dim)
    tile = max(16, min(64, 8192 // dim, 16384 // (dim * itemsize)))
    return {
        "ROWS": max(16, min(64, triton.next_power_of_2(rows))),
        "DIM": dim,
        "TILE": tile,
        "SPLIT": 65536 // (dim * itemsize),
    }


@cache
def _processors(device: torch.device) -> int:
    """The interpreter runs one program after the other: there are two, so that each has several items."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _most_splits(capacity: int, split: int, new: int, window: int | None) -> int:
    """Of one sequence."""
    most = triton.cdiv(capacity, split)
    return most if window is None else min(most, triton.cdiv(window + new - 1, split) + 1)


def decode_workspace(
    q: Tensor, k_cache: Tensor, sequences: int, capacity: int, window: int | None = None, limit: int = 8192
) -> Tensor:
    """Room for partial results: float32 [splits, new * heads, head_dim + 4], for the longest of sequences of up to
    ``capacity`` tokens, but for no more than ``limit`` splits. Those of all sequences lie one after another; a
    sequence that finds no room left is read by one program a head, which is right, and slow. ``limit`` is 2 million
    tokens of 256 bytes of keys a head: at 32 heads and a head size of 128, 138 MB."""
    tokens, heads, head_dim = q.shape
    new = tokens // sequences
    split = _tiles(new * heads // k_cache.shape[1], head_dim, k_cache.itemsize)["SPLIT"]
    splits = min(sequences * _most_splits(capacity, split, new, window), limit)
    return torch.empty(splits, new * heads, head_dim + 4, dtype=torch.float32, device=q.device)


def paged_decode_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    workspace: Tensor | None = None,
) -> Tensor:
    """``q`` may lie apart by token and head; the caches lie alike, the scales without gaps. ``workspace``: see
    ``decode_workspace``."""
    tokens, heads, head_dim = q.shape
    _, kv_heads, block_size, _ = k_cache.shape
    out = torch.empty(tokens, heads, head_dim, dtype=q.dtype, device=q.device)
    sequences = len(seq_lens)
    if not tokens:
        return out
    new = tokens // sequences
    chip = arch(q.device)
    rows = new * heads // kv_heads
    tiles = _tiles(rows, head_dim, k_cache.itemsize)
    capacity = block_tables.shape[1] * block_size
    most = _most_splits(capacity, tiles["SPLIT"], new, window)
    if most > 1 and workspace is None:
        workspace = decode_workspace(q, k_cache, sequences, capacity, window)
    max_splits = 0 if workspace is None else len(workspace)
    if k_cache.dtype == torch.float8_e4m3fn and not _converts(chip):
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    shape = {
        "NEW": new,
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "WINDOW": window or 0,
        "SEQUENCES": _slots(sequences),
    }
    factor = 1.4426950408889634
    work = sequences * most * kv_heads * triton.cdiv(rows, tiles["ROWS"])
    _paged_decode_kernel[(min(work, _PROGRAMS[chip] * _processors(q.device)),)](
        q,
        k_cache,
        v_cache,
        q if k_scales is None else k_scales,
        q if v_scales is None else v_scales,
        block_tables,
        seq_lens,
        out,
        out if workspace is None else workspace,
        sequences,
        max_splits,
        scale * factor if softcap is None else scale * factor * 2 / softcap,
        0.0 if softcap is None else softcap * factor,
        *q.stride()[:2],
        block_tables.stride(0),
        *k_cache.stride()[:3],
        **shape,
        KV_HEADS=kv_heads,
        BLOCK_SIZE=block_size,
        CAPPED=softcap is not None,
        QUANTIZED=k_scales is not None,
        **tiles,
        num_warps=4,
        num_stages=_STAGES[chip],
    )
    if most > 1:
        _reduce_kernel[(tokens * heads,)](
            workspace,
            seq_lens,
            out,
            sequences,
            max_splits,
            **shape,
            DIM=tiles["DIM"],
            SPLIT=tiles["SPLIT"],
            STAGES=_STAGES[chip],
            num_warps=4,
        )
    return out


def _slots(sequences: int) -> int:
    """Few numbers, so that few kernels are compiled."""
    return 64 if sequences <= 64 else max(1024, triton.next_power_of_2(sequences))


def _converts(chip: str) -> bool:
    """Whether it has instructions for float8_e4m3fn."""
    return chip in ("sm_90", "sm_100")
