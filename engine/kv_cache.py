"""The memory that keys and values live in, in blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.errors import StartupError
from kernels.launch import on_triton
from kernels.native.attention import is_packed, packed_shapes, packed_store, packs
from kernels.store_kv import store_kv

_STORED = {"auto": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token needs in the cache."""

    layers: int
    kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, dtype: torch.dtype, kv_cache_dtype: str = "auto") -> int:
        """Of all layers, with the scales of a quantized cache. Raises ``StartupError``."""
        stored = stored_dtype(kv_cache_dtype)
        row = self.head_dim * dtype.itemsize if stored is None else self.head_dim + torch.float32.itemsize
        return 2 * self.layers * self.kv_heads * block_size * row


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer's part of the cache."""

    keys: Tensor
    """[blocks + 1, kv_heads, block_size, head_dim]. On a CPU, in 16 bits, its last two dimensions lie the other way
    round: see kernels/paged_bags.py. In bfloat16 and float32 it is packed where it can be: see
    kernels/native/attention.py."""
    values: Tensor
    """As ``keys``."""
    key_scales: Tensor | None = None
    """Of a quantized cache: float32 [blocks + 1, kv_heads, block_size]."""
    value_scales: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All of them, blocks first."""
        found = (self.keys, self.values, self.key_scales, self.value_scales)
        return [tensor for tensor in found if tensor is not None]

    def store(
        self, keys: Tensor, values: Tensor, slots: Tensor, places: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """``keys``, ``values`` [tokens, kv_heads, head_dim]; ``slots`` int64 [tokens]: where they go, or as blocks and
        offsets, ``places``, for those who store in many layers."""
        if is_packed(self.keys):
            packed_store(keys, values, self.keys, self.values, slots)
            return
        store_kv(keys, values, self.keys, self.values, slots, self.key_scales, self.value_scales, places)


class KVCache:
    """``layers`` holds the keys and values of each layer.

    The one block more is never handed out: block tables are padded with it, and it stays zero, so that what is
    read past a sequence's end is finite and nobody's. Raises ``StartupError`` for an unknown ``kv_cache_dtype``.
    """

    def __init__(
        self,
        shape: KVShape,
        blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
        kv_cache_dtype: str = "auto",
    ) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.padding_block = blocks
        stored = stored_dtype(kv_cache_dtype)
        scales = (blocks + 1, shape.kv_heads, block_size)
        size = (*scales, shape.head_dim)
        # Where Triton is forced, the cache is as on a GPU.
        on_cpu = device.type == "cpu" and not on_triton(torch.empty(0, device=device))
        packed = stored is None and on_cpu and packs(device, dtype, shape.head_dim, block_size)

        def layer() -> KVLayer:
            if packed:
                sizes = packed_shapes(*scales, shape.head_dim, dtype)
                return KVLayer(*(_zeros(size, device, dtype) for size in sizes))
            if stored is None and on_cpu and dtype != torch.float32:
                keys = _zeros((*size[:2], shape.head_dim, block_size), device, dtype).transpose(2, 3)
                return KVLayer(keys, _zeros(size, device, dtype))
            if stored is None:
                return KVLayer(_zeros(size, device, dtype), _zeros(size, device, dtype))
            return KVLayer(
                _zeros(size, device, stored),
                _zeros(size, device, stored),
                _zeros(scales, device, torch.float32),
                _zeros(scales, device, torch.float32),
            )

        self.layers = [layer() for _ in range(shape.layers)]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks: (from, to), in order."""
        for source, target in pairs:
            for layer in self.layers:
                for tensor in layer.tensors:
                    tensor[target].copy_(tensor[source])


def stored_dtype(kv_cache_dtype: str) -> torch.dtype | None:
    """``None`` for ``auto``: the compute dtype. Raises ``StartupError``."""
    if kv_cache_dtype not in _STORED:
        raise StartupError(f"--kv-cache-dtype {kv_cache_dtype} is not one of {', '.join(_STORED)}.")
    return _STORED[kv_cache_dtype]


def _zeros(size: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # torch writes its zeros; these come from the kernel, and take memory only once a block is used.
    count = math.prod(size) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(size)
