"""Small arrays, to a GPU in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_WORDS = 4
"""Words of 4 bytes that each array begins at a multiple of: kernels ask for 16 bytes."""
_DTYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.int32): torch.int32}


def upload(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """``arrays`` of int32 and float32, flat, as tensors on ``device``. Nothing waits for the copy."""
    starts = np.cumsum([0, *(-(-len(array) // _WORDS) * _WORDS for array in arrays)])
    words = np.zeros(starts[-1], dtype=np.int32)
    for start, array in zip(starts, arrays, strict=False):
        words[start : start + len(array)] = array.view(np.int32)
    packed = torch.from_numpy(words)
    if device.type == "cuda":
        packed = packed.pin_memory().to(device, non_blocking=True)
    return [
        packed[start : start + len(array)].view(_DTYPES[array.dtype])
        for start, array in zip(starts.tolist(), arrays, strict=False)
    ]
