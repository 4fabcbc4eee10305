"""Small arrays, to a GPU in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_WORDS = 4
"""Alignment of each array, in words of 4 bytes: kernels need 16 bytes."""
_DTYPES = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
}


def upload(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """``arrays`` of float32, int32 and int64 as tensors on ``device``. Nothing waits for the copy."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    packed = pack(arrays)
    if device.type == "cuda":
        packed = packed.pin_memory()
    return unpack(packed.to(device, non_blocking=True), arrays)


def pack(arrays: Sequence[np.ndarray]) -> Tensor:
    """int32, flat."""
    *starts, end = _starts(arrays)
    words = np.zeros(end, dtype=np.int32)
    for start, array in zip(starts, arrays, strict=True):
        flat = array.ravel().view(np.int32)
        words[start : start + len(flat)] = flat
    return torch.from_numpy(words)


def unpack(packed: Tensor, arrays: Sequence[np.ndarray]) -> list[Tensor]:
    """Views of what ``pack`` made of ``arrays``."""
    return [
        packed[start : start + array.nbytes // 4].view(_DTYPES[array.dtype]).view(array.shape)
        for start, array in zip(_starts(arrays), arrays, strict=False)
    ]


def _starts(arrays: Sequence[np.ndarray]) -> list[int]:
    """Of each array in words of 4 bytes, and the end."""
    return np.cumsum([0, *(-(-array.nbytes // (4 * _WORDS)) * _WORDS for array in arrays)]).tolist()
