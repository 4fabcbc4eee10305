"""Tensors from a device to the host, without waiting for what the device does after them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Download:
    """Begins at once. On a CPU tensors are where they are wanted."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._copied: torch.cuda.Event | None = None
        if tensors and tensors[0].device.type == "cuda":
            self._tensors = [
                torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
                    tensor, non_blocking=True
                )
                for tensor in tensors
            ]
            self._copied = torch.cuda.Event()
            self._copied.record()

    def result(self) -> list[Tensor]:
        """Waits until they are there."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._tensors
