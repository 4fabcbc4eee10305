"""GGUF's quantized blocks as tensors."""

from __future__ import annotations

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import Q4_K, dequantize
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.weights.gguf import GgufTensor
from engine.weights.quantize import Int4Weight

PLAIN = {Type.F32: torch.float32, Type.F16: torch.float16, Type.BF16: torch.bfloat16, Type.F64: torch.float64}
GROUPED = (Type.Q4_0, Type.Q4_1, Type.Q4_K)
"""Types with 4-bit codes and a scale and an offset for each 32 weights, which become ``Int4Weight``."""
_ROWS = 4096
"""Rows processed at a time, which avoids a float32 copy of the whole tensor."""


def check(name: str, kind: Type) -> None:
    """Raises ``UnsupportedModel`` for a type that cannot be read."""
    if kind in PLAIN:
        return
    try:
        dequantize(np.zeros((0, 0), np.uint8), kind)
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"The tensor {name} is of the type {kind.name}, which is not supported; F32, F16, BF16, Q4_0 to Q8_0, "
            "Q2_K to Q6_K and the IQ types are."
        ) from error
    except (ValueError, IndexError, ZeroDivisionError):
        # No rows were given: it is known.
        return


def plain(stored: GgufTensor, dtype: torch.dtype) -> Tensor:
    """A copy in ``dtype``, on the CPU."""
    if stored.type in PLAIN:
        # torch accepts no read-only arrays, and numpy has no bfloat16.
        return torch.from_numpy(stored.data.copy()).view(PLAIN[stored.type]).view(stored.shape).to(dtype)
    rows = stored.data.reshape(-1, stored.data.shape[-1])
    result = torch.empty(len(rows), stored.shape[-1], dtype=dtype)
    for start in range(0, len(rows), _ROWS):
        piece = dequantize(np.ascontiguousarray(rows[start : start + _ROWS]), stored.type)
        result[start : start + _ROWS] = torch.from_numpy(piece)
    return result.view(stored.shape)


def grouped(stored: GgufTensor) -> Int4Weight:
    """A matrix of one of the types ``GROUPED``, without requantization."""
    out_features, in_features = stored.shape
    size = {Type.Q4_0: 18, Type.Q4_1: 20, Type.Q4_K: 144}[stored.type]
    blocks = stored.data.reshape(-1, size)
    if stored.type == Type.Q4_K:
        step, minimum = (blocks[:, i : i + 2].copy().view(np.float16).astype(np.float32) for i in (0, 2))
        scales, minima = Q4_K.get_scale_min(blocks[:, 4:16])
        scale = step * scales.reshape(-1, 8)
        offset = 8 * scale - minimum * minima.reshape(-1, 8)
        # 32 bytes: the lower halves are one group, the upper ones the next.
        pairs = blocks[:, 16:].reshape(-1, 4, 32)
    else:
        scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        offset = np.zeros_like(scale)
        if stored.type == Type.Q4_1:
            offset = 8 * scale + blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
        # 16 bytes: the lower halves are the first half of the group.
        pairs = blocks[:, -16:].reshape(-1, 1, 16)
    codes = np.stack([pairs & 15, pairs >> 4], -2)
    return Int4Weight(
        torch.from_numpy(codes).view(out_features, in_features),
        torch.from_numpy(scale).view(out_features, -1),
        torch.from_numpy(offset).view(out_features, -1),
    )
