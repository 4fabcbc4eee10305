"""Write new keys and values into a cache in 4 bits, whose form is in int4_kv.py.

A block's channels get the range of the keys that are written to it. Where later tokens widen it, what was there is
rounded anew in the wider range; it never narrows. So a block that is filled by one step is rounded once, and one that
grows by a token at a time some times more. A token at a block's beginning starts it anew.

Shapes: ``k``, ``v`` [tokens, kv_heads, head_dim]; ``slots`` int64 [tokens], each written at most once per call, those
of one block one after the other in ascending order. The Triton kernel skips negative slots, which pad a CUDA graph's
batch. What is not finite, or beyond ±30,000, is stored as what is not.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.int4_kv import LEVELS, group_size, pack, unpack
from kernels.launch import Variant, jit, on_triton, tl, triton

_LARGEST = 30_000.0
"""float16 holds the width of twice this."""


def store_int4_kv_reference(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    key_scales: Tensor,
    value_scales: Tensor,
) -> None:
    """``keys``, ``values``, ``key_scales``, ``value_scales``: the cache's."""
    if not len(slots):
        return
    _store_keys(_finite(k), keys, slots, key_scales)
    block_size = keys.shape[2]
    groups = _finite(v).unflatten(-1, (-1, group_size(v.shape[-1])))
    low, scale = _range(groups.amin(-1), groups.amax(-1))
    codes = _codes(groups, low[..., None], scale[..., None]).flatten(-2)
    blocks, offsets = slots // block_size, slots % block_size
    values[blocks, :, offsets] = pack(codes)
    value_scales[blocks, :, offsets] = torch.cat([scale, low], -1)


def _store_keys(k: Tensor, keys: Tensor, slots: Tensor, key_scales: Tensor) -> None:
    block_size = keys.shape[2]
    blocks, offsets = slots // block_size, slots % block_size
    first = torch.ones_like(blocks, dtype=torch.bool)
    first[1:] = blocks[1:] != blocks[:-1]
    run = first.cumsum(0) - 1  # of each token: the how manieth block that is written to
    blocks, began = blocks[first], offsets[first]
    fresh = k.new_zeros(len(blocks), block_size, *k.shape[1:])
    fresh[run, offsets] = k
    new = torch.zeros(len(blocks), block_size, dtype=torch.bool, device=k.device)
    new[run, offsets] = True
    fresh, new = fresh.transpose(1, 2), new[:, None, :, None]

    grows = (began > 0)[:, None, None, None]
    # Of a block that begins anew nothing is read: it may hold anything.
    old_scale, old_low = torch.where(grows, key_scales[blocks].float(), 0.0).split(1, 2)
    infinity = float("inf")
    low = torch.where(new, fresh, infinity).amin(2, keepdim=True)
    high = torch.where(new, fresh, -infinity).amax(2, keepdim=True)
    low = torch.where(grows, torch.minimum(low, old_low), low)
    high = torch.where(grows, torch.maximum(high, old_low + LEVELS * old_scale), high)
    low, scale = _range(low, high)
    before = torch.where(grows, unpack(keys[blocks]).float(), 0.0) * old_scale + old_low
    keys[blocks] = pack(_codes(torch.where(new, fresh, before), low, scale))
    key_scales[blocks] = torch.cat([scale, low], 2)


def _finite(x: Tensor) -> Tensor:
    return torch.nan_to_num(x.float()).clamp_(-_LARGEST, _LARGEST)


def _range(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Low and scale in float16."""
    low = low.half()
    return low, ((high - low.float()) / LEVELS).clamp_min(0.0).half()


def _codes(x: Tensor, low: Tensor, scale: Tensor) -> Tensor:
    scale = scale.float()
    units = (x - low.float()) / torch.where(scale > 0, scale, 1.0)
    return torch.where(scale > 0, units.round().clamp(0, LEVELS), 0.0)


def store_int4_kv(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    key_scales: Tensor,
    value_scales: Tensor,
) -> None:
    store = store_int4_kv_triton if on_triton(k) else store_int4_kv_reference
    store(k, v, keys, values, slots, key_scales, value_scales)


@jit
def _encode(x, low, scale):
    """int32 codes of ``x``."""
    divisor = tl.where(scale > 0.0, scale, 1.0)
    units = tl.minimum(tl.maximum(tl.div_rn(x - low, divisor), 0.0), 15.0)
    # Adding the constant rounds to whole numbers, half to even, in the last bits.
    codes = (units + 12582912.0).to(tl.int32, bitcast=True) & 15
    return tl.where(scale > 0.0, codes, 0)


@jit
def _span(low, high):
    """Low and scale, as float16 holds them."""
    low = low.to(tl.float16).to(tl.float32)
    width = tl.maximum(high - low, 0.0)
    return low, tl.div_rn(width, tl.full(width.shape, 15.0, tl.float32)).to(tl.float16).to(tl.float32)


@jit
def _load_finite(pointers, mask):
    wide = tl.load(pointers, mask, other=0.0).to(tl.float32)
    return tl.minimum(tl.maximum(tl.where(wide == wide, wide, 0.0), -30000.0), 30000.0)


@jit
def _key_half(x, new, old, scales, grows, dim_mask, dims, HEAD_DIM: tl.constexpr):
    """The codes of one half of the channels: ``x`` [rows, dims] where ``new``, ``old`` codes elsewhere; and writes
    their range to ``scales``."""
    old_scale = tl.load(scales + dims, dim_mask & grows, other=0.0).to(tl.float32)
    old_low = tl.load(scales + HEAD_DIM + dims, dim_mask & grows, other=0.0).to(tl.float32)
    low = tl.min(tl.where(new, x, float("inf")), 0)
    high = tl.max(tl.where(new, x, float("-inf")), 0)
    low = tl.where(grows, tl.minimum(low, old_low), low)
    high = tl.where(grows, tl.maximum(high, old_low + 15.0 * old_scale), high)
    low, scale = _span(low, high)
    tl.store(scales + dims, scale.to(tl.float16), dim_mask)
    tl.store(scales + HEAD_DIM + dims, low.to(tl.float16), dim_mask)
    before = old.to(tl.float32) * old_scale[None, :] + old_low[None, :]
    return _encode(
        tl.where(new, x, before), low[None, :].broadcast_to(x.shape), scale[None, :].broadcast_to(x.shape)
    )


@jit
def _value_half(x, scales, row_mask, GROUP: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr):
    """Likewise of values ``x`` [rows, channels], by groups; ``scales`` [rows] point to each row's."""
    rows: tl.constexpr = x.shape[0]
    groups: tl.constexpr = x.shape[1] // PADDED
    x = x.reshape(rows, groups, PADDED)
    group = tl.arange(0, groups)
    channel = group[:, None] * PADDED + tl.arange(0, PADDED)[None, :]
    inside = (channel < HALF)[None, :, :]
    low, scale = _span(
        tl.min(tl.where(inside, x, float("inf")), 2), tl.max(tl.where(inside, x, float("-inf")), 2)
    )
    mask = row_mask[:, None] & (group * GROUP < HALF)[None, :]
    tl.store(scales[:, None] + group[None, :], scale.to(tl.float16), mask)
    tl.store(scales[:, None] + 2 * (HALF // GROUP) + group[None, :], low.to(tl.float16), mask)
    low, scale = low[:, :, None].broadcast_to(x.shape), scale[:, :, None].broadcast_to(x.shape)
    return _encode(x, low, scale).reshape(rows, groups * PADDED)


@jit(varying=("slots", "tokens"))
def _store_int4_kv_kernel(
    k,
    v,
    keys,
    values,
    slots,
    key_scales,
    value_scales,
    tokens,
    k_stride,
    k_head_stride,
    v_stride,
    v_head_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """One block and head: the program of the block's first new token writes all of them, the others' nothing.

    ``ROWS``, ``DIMS``: BLOCK_SIZE and half of HEAD_DIM, rounded up to powers of two."""
    HALF: tl.constexpr = HEAD_DIM // 2
    token, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    slot = tl.load(slots + token).to(tl.int64)
    before = tl.load(slots + token - 1, token > 0, other=-1).to(tl.int64)
    block = slot // BLOCK_SIZE
    if (slot < 0) | ((before >= 0) & (before // BLOCK_SIZE == block)):
        return
    began = (slot % BLOCK_SIZE).to(tl.int32)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIMS)
    source = token + rows - began
    inside = (rows >= began) & (rows < BLOCK_SIZE) & (source < tokens)
    row_new = inside & (tl.load(slots + source, inside, other=-1) == block * BLOCK_SIZE + rows)
    dim_mask = dims < HALF
    new = row_new[:, None] & dim_mask[None, :]
    source = source.to(tl.int64)
    block_row = block * heads + head
    grows = began > 0

    place = keys + (block_row * BLOCK_SIZE + rows)[:, None] * HALF + dims[None, :]
    place_mask = (rows < BLOCK_SIZE)[:, None] & dim_mask[None, :]
    old = tl.load(place, place_mask & grows, other=0).to(tl.int32)
    read = k + (source * k_stride + head * k_head_stride)[:, None] + dims[None, :]
    scales = key_scales + block_row * (2 * HEAD_DIM)
    lower = _key_half(_load_finite(read, new), new, old & 15, scales, grows, dim_mask, dims, HEAD_DIM)
    upper = _key_half(
        _load_finite(read + HALF, new), new, old >> 4, scales + HALF, grows, dim_mask, dims, HEAD_DIM
    )
    tl.store(place, (lower | upper << 4).to(tl.uint8), place_mask)

    read = v + (source * v_stride + head * v_head_stride)[:, None] + dims[None, :]
    padded: tl.constexpr = 32 if GROUP == 32 else DIMS
    value_row = block_row * BLOCK_SIZE + rows
    row_scales = value_scales + value_row * (2 * (HEAD_DIM // GROUP))
    lower = _value_half(_load_finite(read, new), row_scales, row_new, GROUP, padded, HALF)
    upper = _value_half(
        _load_finite(read + HALF, new), row_scales + HALF // GROUP, row_new, GROUP, padded, HALF
    )
    tl.store(values + value_row[:, None] * HALF + dims[None, :], (lower | upper << 4).to(tl.uint8), new)


def store_int4_kv_triton(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    key_scales: Tensor,
    value_scales: Tensor,
) -> None:
    """``k`` and ``v`` may be strided by token and head; the cache is contiguous."""
    tokens, heads, head_dim = k.shape
    if tokens:
        _store_int4_kv_kernel[(tokens, heads)](
            k,
            v,
            keys,
            values,
            slots,
            key_scales,
            value_scales,
            tokens,
            *k.stride()[:2],
            *v.stride()[:2],
            **_constants(keys.shape[2], head_dim),
            num_warps=4,
        )


def _constants(block_size: int, head_dim: int) -> dict[str, int]:
    return {
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "GROUP": group_size(head_dim),
        "ROWS": triton.next_power_of_2(block_size),
        "DIMS": triton.next_power_of_2(head_dim // 2),
    }


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    strides = ("k_stride", "k_head_stride", "v_stride", "v_head_stride")
    for dtype, head_dim in (("bf16", 128), ("bf16", 256), ("fp16", 80)):
        yield Variant(
            f"{dtype} to int4 head_dim={head_dim}",
            _store_int4_kv_kernel,
            {
                **dict.fromkeys(("k", "v"), f"*{dtype}"),
                **dict.fromkeys(("keys", "values"), "*u8"),
                "slots": "*i64",
                **dict.fromkeys(("key_scales", "value_scales"), "*fp16"),
                **dict.fromkeys(("tokens", *strides), "i32"),
            },
            _constants(16, head_dim),
            num_warps=4,
            unaligned=frozenset({"slots", "tokens"}),
        )
