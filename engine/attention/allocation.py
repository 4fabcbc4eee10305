"""Zeroed tensors for a cache."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from kernels.int4_kv import int4_layout


def zeros(size: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # numpy's zeros are untouched pages, which take no memory until a block is written; torch would write them all.
    count = math.prod(size) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(size)


def plain_layer(
    size: tuple[int, int, int, int],
    device: torch.device,
    dtype: torch.dtype,
    *,
    quantized: bool,
    values: int | None = None,
) -> tuple[Tensor, ...]:
    """Keys and values of ``size`` [blocks, kv_heads, block_size, head_dim], and the scales of a quantized cache.
    ``values``: in place of ``head_dim`` for these."""
    tensors = [zeros((*size[:3], width), device, dtype) for width in (size[3], values or size[3])]
    if quantized:
        tensors += [zeros(size[:3], device, torch.float32) for _ in range(2)]
    return tuple(tensors)


def int4_layer(size: tuple[int, int, int, int], device: torch.device) -> tuple[Tensor, ...]:
    """Of ``size`` as above, in 4 bits."""
    return tuple(zeros(shape, device, dtype) for shape, dtype in int4_layout(*size))
