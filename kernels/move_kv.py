"""Keys and values moved from slot to slot of a paged cache: those of accepted draft tokens that stood in a tree."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kernels.native.attention import PANEL


def move_kv(caches: Sequence[Tensor], sources: Tensor, targets: Tensor) -> None:
    """``caches`` [blocks, kv_heads, block_size, …], scales too; ``sources``, ``targets`` int64 [tokens]: slots. All are
    read before any is written."""
    for cache in caches:
        size = cache.shape[2]
        cache[targets // size, :, targets % size] = cache[sources // size, :, sources % size]


def move_packed_kv(keys: Tensor, values: Tensor, sources: Tensor, targets: Tensor) -> None:
    """In the panels of kernels/native/attention.py."""
    size, share = keys.shape[2] * PANEL, values.shape[5]

    def places(slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inside = slots % size
        return slots // size, inside // PANEL, inside % PANEL

    (block, panel, lane), (to_block, to_panel, to_lane) = places(sources), places(targets)
    keys[to_block, :, to_panel, :, to_lane] = keys[block, :, panel, :, lane]
    moved = values[block, :, panel, lane // share, :, lane % share]
    values[to_block, :, to_panel, to_lane // share, :, to_lane % share] = moved
