"""Write new keys and values into the paged cache.

    cache[slot // block_size, h, slot % block_size, :] = x[t, h, :]     for slot = slots[t]

Where the cache is narrower than ``x``, each token and head has a scale of its own:

    scale[t, h]    = max(|x[t, h, :]|) / largest,     largest = 127 for int8, 448 for float8_e4m3fn
    cache[…, :]    = round(x[t, h, :] / scale[t, h]),  so that x ≈ cache * scale

The error of an element is at most scale / 2 in int8, and x / 16 + scale / 1024 in float8_e4m3fn.

Shapes: ``k``, ``v`` [tokens, kv_heads, head_dim]; ``k_cache``, ``v_cache``
[blocks, kv_heads, block_size, head_dim]; ``k_scales``, ``v_scales`` float32 [blocks, kv_heads, block_size] or
``None``; ``slots`` int64 [tokens], each written at most once per call. Where Triton writes, a negative slot is a row
that pads a CUDA graph's batch: it goes nowhere. There a program writes all of a token, or a few of its heads if it
has many, and float8's bits are made with integers, on all chips alike: not all have an instruction for them.

A block is contiguous over all its heads, so that it moves as one piece, and one head's part of it is
contiguous too, so that attention reads straight runs of ``block_size * head_dim`` numbers.

Values that are not finite are stored as finite ones: a block is handed on as it is, and what its next owner has
not yet written is multiplied with a weight of zero. Keys need no such care, as their scores are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Variant, jit, on_triton, tl, triton

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest number of each narrow dtype."""


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``x`` [..., head_dim] as numbers of ``dtype`` and float32 scales [...]. A row of zeros has scale 0."""
    wide = torch.nan_to_num(x).float()
    scales = wide.abs().amax(-1) / LARGEST[dtype]
    units = wide / scales.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    if dtype == torch.int8:
        units = units.round_()
    # Division may end a last bit beyond the largest; float8 has no infinity, and its overflow is NaN.
    return units.clamp_(-LARGEST[dtype], LARGEST[dtype]).to(dtype), scales


def split(slots: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Blocks, and offsets in them."""
    return slots // block_size, slots % block_size


def store_kv_reference(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    places: tuple[Tensor, Tensor] | None = None,
) -> None:
    """``places``: the slots' blocks and offsets, where they are at hand."""
    blocks, offsets = places or split(slots, k_cache.shape[2])
    if k_scales is None or v_scales is None:
        k_cache[blocks, :, offsets] = k
        v_cache[blocks, :, offsets] = torch.nan_to_num(v)
        return
    for x, cache, scales in ((k, k_cache, k_scales), (v, v_cache, v_scales)):
        units, scale = quantize(x, cache.dtype)
        # Bytes, as not all operations know float8.
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
    places: tuple[Tensor, Tensor] | None = None,
) -> None:
    """``k_cache`` lies as ``v_cache`` does. Keys by dimension (see paged_bags.py) are the reference's to write."""
    if on_triton(k):
        store_kv_triton(k, v, k_cache, v_cache, slots, k_scales, v_scales)
    else:
        store_kv_reference(k, v, k_cache, v_cache, slots, k_scales, v_scales, places)


@jit
def widen(x, FP8: tl.constexpr):
    """The bytes of a quantized cache as float32, without their scales: exact, and with no slow conversion."""
    if FP8:
        # Where float32 has its sign, exponent and mantissa they are right but for the exponent's bias.
        bits = (x.to(tl.int32) << 20) & -0x78100000
        return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
    # A number of 23 bits' mantissa with an integer in its last ones, less that number.
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
    x, cache, scales, places, scale_places, inside, heads_inside, QUANTIZED: tl.constexpr, FP8: tl.constexpr
):
    """One tile [heads, head_dim], finite if ``QUANTIZED``."""
    if not QUANTIZED:
        tl.store(cache + places, x.to(cache.dtype.element_ty), inside)
    else:
        most: tl.constexpr = 448.0 if FP8 else 127.0
        scale = tl.div_rn(tl.max(tl.abs(x), 1), tl.full((x.shape[0],), most, tl.float32))
        divisor = tl.maximum(scale, 1.1754943508222875e-38)[:, None].broadcast_to(x.shape)
        units = tl.minimum(tl.maximum(tl.div_rn(x, divisor), -most), most)
        # Adding the constant rounds to whole numbers, half to even, in the last bits.
        bits = _float8_bits(units) if FP8 else (units + 12582912.0).to(tl.int32, bitcast=True)
        tl.store(cache + places, (bits & 0xFF).to(tl.uint8).to(tl.int8, bitcast=True), inside)
        tl.store(scales + scale_places, scale, heads_inside)


@jit(varying=("slots",))
def _store_kv_kernel(
    k,
    v,
    k_cache,
    v_cache,
    slots,
    k_scales,
    v_scales,
    k_token,
    k_head,
    v_token,
    v_head,
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
    heads_inside = (head < heads) & (slot >= 0)
    inside = heads_inside[:, None] & (dim < HEAD_DIM)[None, :]
    keys = tl.load(k + token * k_token + head[:, None] * k_head + dim[None, :], inside, other=0.0)
    values = tl.load(v + token * v_token + head[:, None] * v_head + dim[None, :], inside, other=0.0)
    if QUANTIZED:
        keys = _finite(keys, LARGEST)
    values = _finite(values, LARGEST)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    places = block * cache_block + offset * cache_offset + head[:, None] * cache_head + dim[None, :]
    scale_places = (block * heads + head) * BLOCK_SIZE + offset
    _store(keys, k_cache, k_scales, places, scale_places, inside, heads_inside, QUANTIZED, FP8)
    _store(values, v_cache, v_scales, places, scale_places, inside, heads_inside, QUANTIZED, FP8)


_TILE = 4096
"""Numbers of K that one program writes at most, on all chips: 32 a thread with four warps of 32."""


def store_kv_triton(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> None:
    """``k`` and ``v`` may lie apart by token and head; the caches lie alike, the scales without gaps."""
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
    strides = ("k_token", "k_head", "v_token", "v_head", "cache_block", "cache_head", "cache_offset")
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
