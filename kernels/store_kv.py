"""Write new keys and values into the paged cache.

    cache[slot // block_size, h, slot % block_size, :] = x[t, h, :]     for slot = slots[t]

Where the cache is narrower than ``x``, each token and head has a scale of its own:

    scale[t, h]    = max(|x[t, h, :]|) / largest,     largest = 127 for int8, 448 for float8_e4m3fn
    cache[…, :]    = round(x[t, h, :] / scale[t, h]),  so that x ≈ cache * scale

The error of an element is at most scale / 2 in int8, and x / 16 + scale / 1024 in float8_e4m3fn.

Shapes: ``k``, ``v`` [tokens, kv_heads, head_dim]; ``k_cache``, ``v_cache``
[blocks, kv_heads, block_size, head_dim]; ``k_scales``, ``v_scales`` float32 [blocks, kv_heads, block_size] or
``None``; ``slots`` int64 [tokens], each written at most once per call.

A block is contiguous over all its heads, so that it moves as one piece, and one head's part of it is
contiguous too, so that attention reads straight runs of ``block_size * head_dim`` numbers.

Values that are not finite are stored as finite ones: a block is handed on as it is, and what its next owner has
not yet written is multiplied with a weight of zero. Keys need no such care, as their scores are replaced.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
    store_kv_reference(k, v, k_cache, v_cache, slots, k_scales, v_scales, places)
