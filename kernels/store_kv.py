"""Write new keys and values into the paged cache.

    cache[slot // block_size, h, slot % block_size, :] = x[t, h, :]     for slot = slots[t]

Shapes: ``k``, ``v`` [tokens, kv_heads, head_dim]; ``k_cache``, ``v_cache``
[blocks, kv_heads, block_size, head_dim]; ``slots`` int64 [tokens], each written at most once per call.

A block is contiguous over all its heads, so that it moves as one piece, and one head's part of it is
contiguous too, so that attention reads straight runs of ``block_size * head_dim`` numbers.
"""

from __future__ import annotations

from torch import Tensor


def store_kv_reference(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    block_size = k_cache.shape[2]
    blocks, offsets = slots // block_size, slots % block_size
    k_cache[blocks, :, offsets] = k
    v_cache[blocks, :, offsets] = v


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    store_kv_reference(k, v, k_cache, v_cache, slots)
