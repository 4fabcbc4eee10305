"""Split-KV flash decoding: ``paged_decode`` in Triton. Formula and shapes are in paged_decode.py.

The algorithm is Flash-Decoding (Dao et al., 2023, https://pytorch.org/blog/flash-decoding) over paged blocks.
Position ``a`` belongs to split ``a // SPLIT`` whatever the batch, so that a row's result depends on its sequence alone.
For split j a program computes, for all heads and new tokens that read the same keys,

    m[j] = max(x),   l[j] = Σ 2^(x - m[j]),   o[j] = Σ 2^(x - m[j]) V      over scores x = log2(e) * cap(scale * q · K)
    out  = Σ 2^(m[j] - max(m)) o[j] / Σ 2^(m[j] - max(m)) l[j]             in a second kernel

The kernel is persistent: as many programs as fit on the chip at once loop over the work items (split, KV head, tile of
query rows), which they derive from ``seq_lens`` on the device. The grid depends on shapes alone, so a CUDA graph can
record it, and neither many short sequences nor one long one leave multiprocessors idle. A sequence with a single split
is finished in the first kernel. An empty sequence (``seq_lens`` 0, padding of a CUDA graph's batch) gives zeros. Only
positions that some token sees are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from kernels.int4_kv import load_int4_keys, load_int4_values
from kernels.kv_splits import (
    decode_workspace,
    find_item,
    first_split,
    item_ends,
    max_splits_of,
    padded_sequences,
    reduce_splits,
    split_size,
)
from kernels.launch import Variant, arch, jit, tl, triton
from kernels.paged_kv import PagedKV
from kernels.tree_mask import TreeMask

_LOG2_E = 1.4426950408889634


@jit
def _unpack_pairs(pairs, FP8: tl.constexpr):
    """The lower and upper bytes of int16 ``pairs`` as float16. float8's values come out scaled down by 2**8."""
    if FP8:
        # Shifted to float16's sign, exponent and mantissa; only the exponent's bias differs.
        lower, upper = ((pairs << 8) >> 1) & -0x4080, (pairs >> 1) & -0x4080
        return lower.to(tl.float16, bitcast=True), upper.to(tl.float16, bitcast=True)
    # In float16, 1024 has a mantissa whose last bit is worth 1.
    lower, upper = ((pairs ^ 0x80) & 0xFF) | 0x6400, (((pairs >> 8) ^ 0x80) & 0xFF) | 0x6400
    return lower.to(tl.float16, bitcast=True) - 1152.0, upper.to(tl.float16, bitcast=True) - 1152.0


@jit
def _softcap(scores, softcap):
    """``softcap * tanh(x / softcap)`` for ``scores`` = 2 x / softcap, all in units of log2(e)."""
    return softcap - softcap * 2.0 / (tl.exp2(tl.minimum(scores, 60.0)) + 1.0)


_VARYING = ("block_tables", "seq_lens", "sequences", "max_splits", "table_stride", "new")


@jit(varying=_VARYING)
def _paged_decode_kernel(
    # Tensors.
    q,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    sinks,
    branches,
    roots,
    block_tables,
    seq_lens,
    out,
    partial,
    # Sizes of this batch.
    sequences,
    max_splits,
    new,
    q_stride,
    table_stride,
    # The layer.
    scale,
    softcap,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    FP8: tl.constexpr,
    # Launch configuration.
    SEQUENCES: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Attention of ``new`` tokens of each sequence, one split of one KV head at a time.

    ``q`` [tokens, HEADS, HEAD_DIM], ``q_stride`` apart by token; ``out`` the same, contiguous. ``k_cache``, ``v_cache``
    [blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM], contiguous; of a cache in 8 bits ``v_cache`` is viewed as int16, and
    ``k_scales``, ``v_scales`` are float32 [blocks, KV_HEADS, BLOCK_SIZE]; in 4 bits see int4_kv.py; else None.
    ``block_tables`` [sequences, …], ``table_stride`` apart; ``partial``: the workspace of kv_splits.py, with
    ``max_splits`` splits.

    ``branches`` int64 [tokens], ``roots`` int64 [sequences]: see tree_mask.py; None where tokens form no tree.

    ``scale`` and ``softcap`` include log2(e), see ``paged_decode_triton``; ``softcap`` and ``sinks`` are None where
    there are none;
    ``WINDOW`` is 0 where there is none; ``FP8`` tells float8_e4m3fn from int8.

    ``SEQUENCES``: ``sequences`` rounded up; ``ROWS``: query rows (new tokens * heads of the group) of a tile; ``DIM``:
    HEAD_DIM rounded up to a power of two; ``TILE``: keys of a tile; ``SPLIT``: positions of a split.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    INT4: tl.constexpr = k_cache.dtype.element_ty == tl.uint8
    # In 8 bits, with a scale for each token.
    QUANTIZED: tl.constexpr = k_scales is not None and not INT4
    # Without conversion instructions float8 keys are loaded as int8 and widened by shifts.
    KEY_BITS: tl.constexpr = FP8 and k_cache.dtype.element_ty == tl.int8
    KEY_FACTOR: tl.constexpr = 256.0 if KEY_BITS else 1.0
    VALUE_FACTOR: tl.constexpr = 256.0 if FP8 else 1.0
    wide: tl.constexpr = tl.float16 if QUANTIZED and q.dtype.element_ty != tl.float32 else q.dtype.element_ty
    row_tiles = (new * GROUP + ROWS - 1) // ROWS
    ends = item_ends(seq_lens, sequences, max_splits, new, SEQUENCES, SPLIT, WINDOW)
    dims, half_dims = tl.arange(0, DIM), tl.arange(0, DIM // 2)
    for work in range(tl.program_id(0), tl.max(ends, 0) * KV_HEADS * row_tiles, tl.num_programs(0)):
        item, head, row_tile = work // (KV_HEADS * row_tiles), work // row_tiles % KV_HEADS, work % row_tiles
        sequence, items_before, splits = find_item(ends, item)
        single = splits == 1
        length = tl.load(seq_lens + sequence).to(tl.int32)
        begin = (first_split(length, new, SPLIT, WINDOW) + item - items_before) * SPLIT
        end = length if single else tl.minimum(begin + SPLIT, length)
        if WINDOW:
            window_start = tl.maximum(length - new + 1 - WINDOW, 0)
            begin = tl.maximum(begin, window_start // TILE * TILE)
        table = block_tables + sequence.to(tl.int64) * table_stride
        kv_positions = begin + tl.arange(0, TILE)
        block = tl.load(table + kv_positions // BLOCK_SIZE, kv_positions < end, other=0)

        rows = row_tile * ROWS + tl.arange(0, ROWS)
        row_mask = rows < new * GROUP
        q_mask = row_mask[:, None] & (dims < HEAD_DIM)[None, :]
        q_positions = length - new + rows // GROUP
        token = sequence.to(tl.int64) * new + rows // GROUP
        row_head = head * GROUP + rows % GROUP
        query = tl.load(
            q + token[:, None] * q_stride + row_head[:, None] * HEAD_DIM + dims[None, :], q_mask, other=0.0
        )
        if branches is not None:
            branch = tl.load(branches + token, row_mask, other=0)
            root = tl.load(roots + sequence)
        row_scale = tl.full([ROWS], 1.0, tl.float32) * scale
        if QUANTIZED:
            # float16 holds every 8-bit number, and a query's once they are scaled into [-1, 1].
            abs_max = tl.maximum(tl.max(tl.abs(query.to(tl.float32)), 1), 1e-30)
            query = (query.to(tl.float32) / abs_max[:, None]).to(wide)
            row_scale *= abs_max
        m_i = tl.full([ROWS], -1e28, tl.float32)
        l_i = tl.zeros([ROWS, TILE], tl.float32)
        acc = tl.zeros([ROWS, DIM // 2 if QUANTIZED else DIM], tl.float32)
        acc_odd = acc
        for tile_start in range(begin, end, TILE):
            kv_positions = tile_start + tl.arange(0, TILE)
            kv_mask = kv_positions < length
            if WINDOW:
                kv_mask &= kv_positions >= window_start
            offset = kv_positions % BLOCK_SIZE
            block_rows = block.to(tl.int64) * KV_HEADS + head
            scale_offsets = block_rows * BLOCK_SIZE + offset
            kv_offsets = scale_offsets * HEAD_DIM
            # The next tile's block ids are loaded early: its keys cannot be requested without them.
            block = tl.load(table + (kv_positions + TILE) // BLOCK_SIZE, kv_positions + TILE < end, other=0)
            load_mask = kv_mask[:, None] & (dims < HEAD_DIM)[None, :]
            if INT4:
                keys = load_int4_keys(
                    k_cache, k_scales, block_rows, offset, dims, load_mask, BLOCK_SIZE, HEAD_DIM
                )
            else:
                keys = tl.load(k_cache + kv_offsets[:, None] + dims[None, :], load_mask, other=0.0)
            if KEY_BITS:
                keys = ((keys.to(tl.int16) << 7) & -0x4001).to(tl.float16, bitcast=True)
            scores = tl.dot(query, tl.trans(keys.to(wide)), input_precision="ieee") * row_scale[:, None]
            if QUANTIZED:
                scores *= tl.load(k_scales + scale_offsets, kv_mask, other=0.0)[None, :] * KEY_FACTOR
            if softcap is not None:
                scores = _softcap(scores, softcap)
            visible = kv_positions[None, :] <= q_positions[:, None]
            if WINDOW:
                visible &= kv_positions[None, :] > q_positions[:, None] - WINDOW
            if branches is not None:
                after = kv_positions - root
                bit = (branch[:, None] >> tl.minimum(tl.maximum(after, 0), 63)[None, :]) & 1
                visible &= (after < 0)[None, :] | (bit == 1)
            scores = tl.where(visible, scores, -1e30)
            if QUANTIZED:
                # Normalised so that the largest product of weight and scale is 1: all of them fit float16.
                value_scale = tl.load(v_scales + scale_offsets, kv_mask, other=0.0) * VALUE_FACTOR
                value_scale = tl.maximum(value_scale, 1e-18)
                m_new = tl.maximum(m_i, tl.max(scores + tl.log2(value_scale)[None, :], 1))
            else:
                m_new = tl.maximum(m_i, tl.max(scores, 1))
            weights = tl.exp2(scores - m_new[:, None])
            alpha = tl.exp2(m_i - m_new)[:, None]
            m_i = m_new
            l_i = l_i * alpha + weights
            if QUANTIZED:
                # Values are loaded in pairs: no chip transposes single bytes on their way from shared memory.
                pairs = tl.load(
                    v_cache + (kv_offsets // 2)[:, None] + half_dims[None, :],
                    kv_mask[:, None] & (half_dims < HEAD_DIM // 2)[None, :],
                    other=0,
                )
                lower, upper = _unpack_pairs(pairs, FP8)
                weights = (weights * value_scale[None, :]).to(wide)
                acc = tl.dot(weights, lower.to(wide), acc * alpha, input_precision="ieee")
                acc_odd = tl.dot(weights, upper.to(wide), acc_odd * alpha, input_precision="ieee")
            else:
                if INT4:
                    values = load_int4_values(
                        v_cache, v_scales, block_rows, offset, dims, load_mask, BLOCK_SIZE, HEAD_DIM
                    ).to(wide)
                else:
                    values = tl.load(v_cache + kv_offsets[:, None] + dims[None, :], load_mask, other=0.0)
                acc = tl.dot(weights.to(wide), values, acc * alpha, input_precision="ieee")

        if QUANTIZED:
            acc = tl.interleave(acc, acc_odd)
        l_sum = tl.sum(l_i, 1)
        if single:
            if sinks is not None:
                sink = tl.load(sinks + row_head, row_mask, other=0.0) * 1.4426950408889634
                l_sum += tl.exp2(tl.minimum(sink - m_i, 126.0))
            acc = acc / tl.where(l_sum > 0.0, l_sum, 1.0)[:, None]
            out_rows = out + (token * HEADS + row_head) * HEAD_DIM
            tl.store(out_rows[:, None] + dims[None, :], acc.to(out.dtype.element_ty), q_mask)
        else:
            row = item * (new * HEADS) + rows // GROUP * HEADS + row_head
            result = partial + row.to(tl.int64) * (HEAD_DIM + 4)
            tl.store(result[:, None] + dims[None, :], acc, q_mask)
            tl.store(result + HEAD_DIM, m_i, row_mask)
            tl.store(result + HEAD_DIM + 1, l_sum, row_mask)


_PROGRAMS_PER_SM = 2
"""On all chips: as many as its registers hold. Their tiles take at most its shared memory."""
_STAGES = {"sm_80": 3, "sm_90": 3, "sm_100": 3, "gfx942": 2}
"""Pipeline stages: two tiles are in flight while one is multiplied, or one where shared memory is small."""
_TILE_ELEMENTS = {"sm_80": 8192, "sm_90": 8192, "sm_100": 8192, "gfx942": 4096}
"""Upper bound of TILE * DIM that registers allow beside 16 query rows. Beside more rows the smallest one applies."""


def _tiles(
    rows: int, head_dim: int, itemsize: int, chip: str, *, in_4_bits: bool = False, tree: bool = False
) -> dict[str, int]:
    """Launch constants for ``rows`` (new tokens * group) over a cache with elements of ``itemsize`` bytes."""
    dim = triton.next_power_of_2(head_dim)
    # More rows would spill registers: their keys are read once more instead.
    max_rows = (_TILE_ELEMENTS[chip] // 2 if itemsize == 1 else 8192) // dim
    rows = max(16, min(64, max_rows, triton.next_power_of_2(rows)))
    elements = _TILE_ELEMENTS[chip] if rows == 16 else min(_TILE_ELEMENTS.values())
    if in_4_bits or tree:
        elements //= 2  # the rest of the registers is for scales, or for what each token sees
    return {
        "ROWS": rows,
        "DIM": dim,
        "TILE": max(16, min(64, elements // dim, 16384 // (dim * itemsize))),
        "SPLIT": split_size(head_dim, itemsize),
    }


@cache
def _multiprocessors(device: torch.device) -> int:
    """1 in the interpreter, which runs programs one after another: with fewer of them each has more to do."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def paged_decode_triton(
    q: Tensor,
    kv: PagedKV,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    workspace: Tensor | None = None,
    sinks: Tensor | None = None,
    tree: TreeMask | None = None,
) -> Tensor:
    """As ``paged_decode``. ``q`` may be strided by token; the cache and its scales are contiguous. ``workspace``: see
    ``decode_workspace``; allocated here if it is None."""
    tokens, heads, head_dim = q.shape
    k_cache, v_cache, block_tables, seq_lens = kv.keys, kv.values, kv.block_tables, kv.seq_lens
    _, kv_heads, block_size, _ = k_cache.shape
    out = torch.empty(tokens, heads, head_dim, dtype=q.dtype, device=q.device)
    sequences = len(seq_lens)
    if not tokens:
        return out
    if q.stride(2) != 1 or q.stride(1) != head_dim:
        q = q.contiguous()
    new = tokens // sequences
    chip = arch(q.device)
    rows = new * heads // kv_heads
    tiles = _tiles(rows, head_dim, k_cache.itemsize, chip, in_4_bits=kv.in_4_bits, tree=tree is not None)
    capacity = block_tables.shape[1] * block_size
    splits = max_splits_of(capacity, tiles["SPLIT"], new, window)
    if workspace is None:
        workspace = (
            decode_workspace(q, k_cache, sequences, capacity, window)
            if splits > 1
            else torch.empty(0, dtype=torch.float32, device=q.device)
        )
    fp8 = k_cache.dtype == torch.float8_e4m3fn
    if kv.scaled_by_token:
        v_cache = v_cache.view(torch.int16)
    if fp8 and not _converts_fp8(chip):
        k_cache = k_cache.view(torch.int8)
    # Shared with the kernel that adds up the splits.
    shape = {
        "new": new,
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "WINDOW": window or 0,
        "SEQUENCES": padded_sequences(sequences),
    }
    items = sequences * splits * kv_heads * triton.cdiv(rows, tiles["ROWS"])
    _paged_decode_kernel[(min(items, _PROGRAMS_PER_SM * _multiprocessors(q.device)),)](
        q,
        k_cache,
        v_cache,
        kv.key_scales,
        kv.value_scales,
        sinks,
        None if tree is None else tree.branches,
        None if tree is None else tree.roots,
        block_tables,
        seq_lens,
        out,
        workspace,
        sequences,
        len(workspace),
        q_stride=q.stride(0),
        table_stride=block_tables.stride(0),
        scale=scale * _LOG2_E if softcap is None else scale * _LOG2_E * 2 / softcap,
        softcap=None if softcap is None else softcap * _LOG2_E,
        **shape,
        KV_HEADS=kv_heads,
        BLOCK_SIZE=block_size,
        FP8=fp8,
        **tiles,
        num_warps=4,
        num_stages=_STAGES[chip],
    )
    if splits > 1:
        reduce_splits(workspace, seq_lens, out, shape, tiles["SPLIT"], sinks)
    return out


def _converts_fp8(chip: str) -> bool:
    """Whether the chip has conversion instructions for float8_e4m3fn."""
    return chip in ("sm_90", "sm_100")


_SHAPES = (
    # dtype, cache, head_dim, heads, kv_heads, new, window, features
    ("bf16", "bf16", 64, 32, 8, 1, 0, ""),
    ("bf16", "bf16", 64, 64, 8, 1, 128, "sinks"),
    ("bf16", "bf16", 128, 32, 8, 1, 0, ""),
    ("bf16", "bf16", 128, 32, 8, 8, 0, ""),
    ("bf16", "bf16", 128, 32, 8, 16, 0, ""),
    ("bf16", "bf16", 128, 32, 8, 8, 0, "tree"),
    ("bf16", "bf16", 256, 16, 2, 8, 4096, "softcap"),
    ("bf16", "bf16", 128, 32, 32, 1, 4096, ""),
    ("bf16", "bf16", 256, 16, 2, 1, 4096, "softcap"),
    ("fp16", "fp16", 80, 32, 32, 16, 0, ""),
    ("bf16", "fp8", 128, 32, 8, 1, 0, ""),
    ("bf16", "fp8", 128, 32, 8, 16, 0, ""),
    ("bf16", "fp8", 256, 16, 2, 4, 4096, "softcap"),
    ("bf16", "int8", 128, 32, 8, 1, 0, ""),
    ("bf16", "int4", 128, 32, 8, 1, 0, ""),
    ("bf16", "int4", 64, 32, 8, 4, 128, "sinks"),
)


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    sizes = ("sequences", "max_splits", "new", "q_stride", "table_stride")
    for dtype, stored, head_dim, heads, kv_heads, new, window, features in _SHAPES:
        quantized = stored != dtype
        rows = new * heads // kv_heads
        tiles = _tiles(
            rows,
            head_dim,
            1 if quantized else 2,
            arch,
            in_4_bits=stored == "int4",
            tree="tree" in features,
        )
        element = {"int4": "u8", "int8": "i8", "fp8": "fp8e4nv" if _converts_fp8(arch) else "i8"}.get(
            stored, stored
        )
        scales = "*fp16" if stored == "int4" else "*fp32"
        pointers = {
            **dict.fromkeys(("q", "out"), f"*{dtype}"),
            "k_cache": f"*{element}",
            "v_cache": {"int8": "*i16", "fp8": "*i16", "int4": "*u8"}.get(stored, f"*{dtype}"),
            **dict.fromkeys(("block_tables", "seq_lens"), "*i64"),
            "partial": "*fp32",
        }
        shape = {"HEADS": heads, "HEAD_DIM": head_dim, "WINDOW": window, "SEQUENCES": 1024}
        name = (
            f"{dtype} over {stored} head_dim={head_dim} group={heads // kv_heads} new={new} window={window}"
        )
        name += "".join(f" {feature}" for feature in ("sinks", "tree") if feature in features)
        yield Variant(
            name,
            _paged_decode_kernel,
            {
                **pointers,
                **(dict.fromkeys(("k_scales", "v_scales"), scales) if quantized else {}),
                **dict.fromkeys(sizes, "i32"),
                "scale": "fp32",
                **({"softcap": "fp32"} if "softcap" in features else {}),
                **({"sinks": "*fp32"} if "sinks" in features else {}),
                **({"branches": "*i64", "roots": "*i64"} if "tree" in features else {}),
            },
            {
                **shape,
                **tiles,
                **({} if quantized else {"k_scales": None, "v_scales": None}),
                **({} if "softcap" in features else {"softcap": None}),
                **({} if "sinks" in features else {"sinks": None}),
                **({} if "tree" in features else {"branches": None, "roots": None}),
                "KV_HEADS": kv_heads,
                "BLOCK_SIZE": 16,
                "FP8": stored == "fp8",
            },
            num_warps=4,
            num_stages=_STAGES[arch],
            dot=True,
            unaligned=frozenset(_VARYING),
        )
