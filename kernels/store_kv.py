"""Write new keys and values into the paged cache.

    cache[slot // block_size, h, slot % block_size, :] = x[t, h, :]     for slot = slots[t]

In a quantized cache each token and head has a scale:

    scale[t, h]    = max(|x[t, h, :]|) / largest,     largest = 127 for int8, 448 for float8_e4m3fn
    cache[…, :]    = round(x[t, h, :] / scale[t, h]),  so that x ≈ cache * scale

The error of an element is at most scale / 2 in int8, and x / 16 + scale / 1024 in float8_e4m3fn.

Shapes: ``k``, ``v`` [tokens, kv_heads, head_dim]; ``k_cache``, ``v_cache``
[blocks, kv_heads, block_size, head_dim]; ``k_scales``, ``v_scales`` float32 [blocks, kv_heads, block_size] or
``None``; ``slots`` int64 [tokens], each written at most once per call. The Triton kernel skips negative slots, which
pad a CUDA graph's batch. One of its programs writes a whole token, or a few heads of it if there are many. It computes
float8's bits with integer operations on all chips, as not all have a conversion instruction.

A block is contiguous over all its heads, so that it is copied as one piece, and so is each head within it: attention
reads runs of ``block_size * head_dim`` elements.

Values that are not finite are stored as finite ones: blocks are reused without clearing, and slots that the next owner
has not written yet are multiplied by a weight of zero. Keys need no such care, as masking replaces their scores.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Variant, jit, on_triton, tl, triton

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest finite value of each 8-bit dtype."""


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``x`` [..., head_dim] in ``dtype``, and float32 scales [...]. A row of zeros has scale 0."""
    wide = torch.nan_to_num(x).float()
    scales = wide.abs().amax(-1) / LARGEST[dtype]
    units = wide / scales.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    if dtype == torch.int8:
        units = units.round_()
    # Division may round past the largest value; float8_e4m3fn has no infinity, and overflow gives NaN.
    return units.clamp_(-LARGEST[dtype], LARGEST[dtype]).to(dtype), scales


def split(slots: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Block ids, and offsets within the blocks."""
    return slots // block_size, slots % block_size


def store_kv_reference(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    block_offsets: tuple[Tensor, Tensor] | None = None,
) -> None:
    """``block_offsets``: what ``split`` gives for ``slots``, if the caller has it already."""
    blocks, offsets = block_offsets or split(slots, k_cache.shape[2])
    if k_scales is None or v_scales is None:
        k_cache[blocks, :, offsets] = k
        v_cache[blocks, :, offsets] = torch.nan_to_num(v)
        return
    for x, cache, scales in ((k, k_cache, k_scales), (v, v_cache, v_scales)):
        units, scale = quantize(x, cache.dtype)
        # As bytes: indexing is not implemented for float8.
        cache.view(torch.int8)[blocks, :, offsets] = units.view(torch.int8)
        scales[blocks, :, offsets] = scale


def store_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    block_offsets: tuple[Tensor, Tensor] | None = None,
) -> None:
    """``k_cache`` and ``v_cache`` have the same strides, except where keys are stored by dimension (paged_bags.py),
    which only the reference writes."""
    if on_triton(k):
        store_kv_triton(k, v, k_cache, v_cache, slots, k_scales, v_scales)
    else:
        store_kv_reference(k, v, k_cache, v_cache, slots, k_scales, v_scales, block_offsets)


@jit
def widen(x, FP8: tl.constexpr):
    """A quantized cache's bytes as float32, without scales: exact, and without slow conversion instructions."""
    if FP8:
        # Shifted to float32's sign, exponent and mantissa; only the exponent's bias differs.
        bits = (x.to(tl.int32) << 20) & -0x78100000
        return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
    # 1.5 * 2**23 has a mantissa whose last bit is worth 1: the integer is put there, and the constant subtracted.
    return (x.to(tl.int32) + 0x4B400000).to(tl.float32, bitcast=True) - 12582912.0


@jit
def _float8_bits(x):
    """float8_e4m3fn of |x| ≤ 448, rounded half to even."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = (size + 0x7FFFF + ((size >> 20) & 1) - (120 << 23)) >> 20
    # Below 2**-6 it is a number of 2**-9: the last bit of a float32 from 2**14 on.
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) & 0xF
    return tl.where(size < (121 << 23), small, normal) | ((bits >> 24) & 0x80)


@jit
def _finite(x, LARGEST: tl.constexpr):
    wide = x.to(tl.float32)
    return tl.minimum(tl.maximum(tl.where(wide == wide, wide, 0.0), -LARGEST), LARGEST)


@jit
def _store(
    x,
    cache,
    scales,
    cache_offsets,
    scale_offsets,
    mask,
    head_mask,
    QUANTIZED: tl.constexpr,
    FP8: tl.constexpr,
):
    """Stores one tile [heads, head_dim], whose elements must be finite if ``QUANTIZED``."""
    if not QUANTIZED:
        tl.store(cache + cache_offsets, x.to(cache.dtype.element_ty), mask)
    else:
        largest: tl.constexpr = 448.0 if FP8 else 127.0
        scale = tl.div_rn(tl.max(tl.abs(x), 1), tl.full((x.shape[0],), largest, tl.float32))
        divisor = tl.maximum(scale, 1.1754943508222875e-38)[:, None].broadcast_to(x.shape)
        units = tl.minimum(tl.maximum(tl.div_rn(x, divisor), -largest), largest)
        # Adding the constant rounds to whole numbers, half to even, in the last bits.
        bits = _float8_bits(units) if FP8 else (units + 12582912.0).to(tl.int32, bitcast=True)
        tl.store(cache + cache_offsets, (bits & 0xFF).to(tl.uint8).to(tl.int8, bitcast=True), mask)
        tl.store(scales + scale_offsets, scale, head_mask)


@jit(varying=("slots",))
def _store_kv_kernel(
    k,
    v,
    k_cache,
    v_cache,
    slots,
    k_scales,
    v_scales,
    k_stride,
    k_head_stride,
    v_stride,
    v_head_stride,
    cache_block,
    cache_head,
    cache_offset,
    heads,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    LARGEST: tl.constexpr,
    QUANTIZED: tl.constexpr,
    FP8: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dim = tl.arange(0, BLOCK_DIM)
    head_mask = (head < heads) & (slot >= 0)
    mask = head_mask[:, None] & (dim < HEAD_DIM)[None, :]
    keys = tl.load(k + token * k_stride + head[:, None] * k_head_stride + dim[None, :], mask, other=0.0)
    values = tl.load(v + token * v_stride + head[:, None] * v_head_stride + dim[None, :], mask, other=0.0)
    if QUANTIZED:
        keys = _finite(keys, LARGEST)
    values = _finite(values, LARGEST)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    cache_offsets = block * cache_block + offset * cache_offset + head[:, None] * cache_head + dim[None, :]
    scale_offsets = (block * heads + head) * BLOCK_SIZE + offset
    _store(keys, k_cache, k_scales, cache_offsets, scale_offsets, mask, head_mask, QUANTIZED, FP8)
    _store(values, v_cache, v_scales, cache_offsets, scale_offsets, mask, head_mask, QUANTIZED, FP8)


_TILE = 4096
"""Elements of K that one program writes at most, on all chips: 32 a thread with four warps of 32."""


def store_kv_triton(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> None:
    """``k`` and ``v`` may be strided by token and head; both caches have the same strides, and scales are
    contiguous."""
    tokens, heads, head_dim = k.shape
    quantized = k_scales is not None
    fp8 = k_cache.dtype == torch.float8_e4m3fn
    if quantized:
        k_cache, v_cache = k_cache.view(torch.int8), v_cache.view(torch.int8)
    tile = _tile(heads, head_dim)
    if tokens:
        _store_kv_kernel[(tokens, triton.cdiv(heads, tile["BLOCK_HEADS"]))](
            k,
            v,
            k_cache,
            v_cache,
            slots,
            k_scales if quantized else k_cache,
            v_scales if quantized else v_cache,
            *k.stride()[:2],
            *v.stride()[:2],
            *k_cache.stride()[:3],
            heads,
            BLOCK_SIZE=k_cache.shape[2],
            HEAD_DIM=head_dim,
            **tile,
            LARGEST=torch.finfo(v.dtype).max,
            QUANTIZED=quantized,
            FP8=fp8,
            num_warps=_warps(tile),
        )


def _tile(heads: int, head_dim: int) -> dict[str, int]:
    block_dim = triton.next_power_of_2(head_dim)
    return {"BLOCK_HEADS": min(triton.next_power_of_2(heads), _TILE // block_dim), "BLOCK_DIM": block_dim}


def _warps(tile: dict[str, int]) -> int:
    """The same on all chips: so that each thread loads 16 bytes of K, and of V, at a time."""
    return max(1, min(4, tile["BLOCK_HEADS"] * tile["BLOCK_DIM"] // 256))


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    strides = (
        "k_stride",
        "k_head_stride",
        "v_stride",
        "v_head_stride",
        "cache_block",
        "cache_head",
        "cache_offset",
    )
    for dtype, x_dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        for stored in (dtype, "int8", "fp8"):
            for heads, head_dim in ((8, 128),) if dtype == "fp16" else ((8, 128), (4, 256)):
                cache = dtype if stored == dtype else "i8"
                tile = _tile(heads, head_dim)
                yield Variant(
                    f"{dtype} to {stored} heads={heads} head_dim={head_dim}",
                    _store_kv_kernel,
                    {
                        **dict.fromkeys(("k", "v"), f"*{dtype}"),
                        **dict.fromkeys(("k_cache", "v_cache"), f"*{cache}"),
                        "slots": "*i64",
                        **dict.fromkeys(("k_scales", "v_scales"), f"*{dtype}" if cache == dtype else "*fp32"),
                        **dict.fromkeys(strides, "i32"),
                        "heads": "i32",
                    },
                    {
                        "BLOCK_SIZE": 16,
                        "HEAD_DIM": head_dim,
                        **tile,
                        "LARGEST": torch.finfo(x_dtype).max,
                        "QUANTIZED": cache != dtype,
                        "FP8": stored == "fp8",
                    },
                    num_warps=_warps(tile),
                    unaligned=frozenset({"heads", "slots"}),
                )
