"""Keys and values in 4 bits: keys by channel within a block, values by token in groups of channels.

    key[p, d]   ≈ scale[d] * code[p, d] + low[d]                   d: a channel; p: a token of the block
    value[p, d] ≈ scale[p, d // group] * code[p, d] + low[p, d // group]

with codes from 0 to 15. Some channels of keys are far larger than others, and vary little from one token to the next:
a scale for each token loses what the small ones say, a scale for each channel does not (KIVI, Liu et al., 2024,
https://arxiv.org/abs/2402.02750). Values have no such channels.

Shapes: keys and values uint8 [blocks, kv_heads, block_size, head_dim / 2], where byte ``j`` has channel ``j`` in its
lower and channel ``j + head_dim / 2`` in its upper half; ``key_scales`` float16 [blocks, kv_heads, 2, head_dim], scales
and then lows; ``value_scales`` float16 [blocks, kv_heads, block_size, 2 * head_dim / group], likewise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.launch import jit, tl
from kernels.paged_kv import PagedKV

LEVELS = 15
"""The largest code."""


def group_size(head_dim: int) -> int:
    """Channels of a value's group: they do not cross the middle of a head."""
    half = head_dim // 2
    return 32 if half % 32 == 0 else half


def int4_layout(
    blocks: int, kv_heads: int, block_size: int, head_dim: int
) -> tuple[tuple[tuple[int, int, int, int], torch.dtype], ...]:
    """Sizes and dtypes of keys, values, and their scales."""
    packed = (blocks, kv_heads, block_size, head_dim // 2)
    groups = head_dim // group_size(head_dim)
    return (
        (packed, torch.uint8),
        (packed, torch.uint8),
        ((blocks, kv_heads, 2, head_dim), torch.float16),
        ((blocks, kv_heads, block_size, 2 * groups), torch.float16),
    )


def int4_block_bytes(block_size: int, head_dim: int) -> int:
    """Of one head, scales and lows included."""
    scales = 2 * head_dim + block_size * 2 * (head_dim // group_size(head_dim))
    return block_size * head_dim + scales * torch.float16.itemsize


def unpack(packed: Tensor) -> Tensor:
    """uint8 [..., head_dim / 2] → codes, uint8 [..., head_dim]."""
    return torch.cat([packed & 0xF, packed >> 4], -1)


def pack(codes: Tensor) -> Tensor:
    """The reverse."""
    lower, upper = codes.to(torch.uint8).chunk(2, -1)
    return lower | upper << 4


def gather_int4_keys(kv: PagedKV, rows: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
    """As ``gather``: ``rows`` of [blocks * kv_heads, …] as [batch, length, head_dim] in ``dtype``."""
    codes = unpack(kv.keys.flatten(0, 1).index_select(0, rows)).float()
    scales, lows = _scales(kv.key_scales).flatten(0, 1).index_select(0, rows).float().split(1, 1)
    return torch.addcmul(lows, codes, scales).to(dtype).view(batch, -1, codes.shape[-1])


def gather_int4_values(kv: PagedKV, rows: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
    codes = unpack(kv.values.flatten(0, 1).index_select(0, rows)).float()
    found = _scales(kv.value_scales).flatten(0, 1).index_select(0, rows).float()
    scales, lows = found.unflatten(-1, (2, -1, 1)).unbind(-3)
    grouped = codes.unflatten(-1, (scales.shape[-2], -1))
    return torch.addcmul(lows, grouped, scales).to(dtype).view(batch, -1, codes.shape[-1])


def _scales(scales: Tensor | None) -> Tensor:
    if scales is None:
        raise ValueError("a cache in 4 bits has scales")
    return scales


@jit
def _load_codes(cache, token_rows, dims, mask, HALF: tl.constexpr):
    packed = tl.load(cache + token_rows[:, None] * HALF + (dims % HALF)[None, :], mask, other=0)
    return ((packed.to(tl.int32) >> (dims // HALF * 4)[None, :]) & 15).to(tl.float32)


@jit
def load_int4_keys(
    cache, scales, block_rows, offsets, dims, mask, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    """float32 [tokens, dims] of the tokens at ``offsets`` of ``block_rows`` int64 = block * kv_heads + head."""
    codes = _load_codes(cache, block_rows * BLOCK_SIZE + offsets, dims, mask, HEAD_DIM // 2)
    at = scales + block_rows[:, None] * (2 * HEAD_DIM) + dims[None, :]
    scale = tl.load(at, mask, other=0.0).to(tl.float32)
    return codes * scale + tl.load(at + HEAD_DIM, mask, other=0.0).to(tl.float32)


@jit
def load_int4_values(
    cache, scales, block_rows, offsets, dims, mask, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    HALF: tl.constexpr = HEAD_DIM // 2
    GROUP: tl.constexpr = 32 if HALF % 32 == 0 else HALF
    token_rows = block_rows * BLOCK_SIZE + offsets
    codes = _load_codes(cache, token_rows, dims, mask, HALF)
    at = scales + token_rows[:, None] * (2 * (HEAD_DIM // GROUP)) + (dims // GROUP)[None, :]
    scale = tl.load(at, mask, other=0.0).to(tl.float32)
    return codes * scale + tl.load(at + HEAD_DIM // GROUP, mask, other=0.0).to(tl.float32)
