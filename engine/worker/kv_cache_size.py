"""How many KV blocks a GPU has room for: what is left once a trial has shown what serving needs beside them.

The trial is a cache just large enough for the warm-up, whose first step is the largest that can come, and the CUDA
graphs. What free memory has shrunk by then, but for the trial's own cache, is what activations, graphs, libraries'
workspaces and kernels' code take; the real cache gets the rest, but for a margin.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol

import torch

MARGIN = 0.05
"""Of the device's memory: for what fragments, and for what other processes take."""


class Meter(Protocol):
    """A device's memory, in bytes."""

    def total(self) -> int: ...

    def free(self) -> int:
        """What nobody has, this process's reserve that it does not use included."""
        ...

    def left(self) -> int:
        """What nobody has; what this process has ever needed at a time is its own."""
        ...


class GpuMeter:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[1])

    def free(self) -> int:
        gc.collect()
        torch.cuda.empty_cache()
        return self.left()

    def left(self) -> int:
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.mem_get_info(self._device)[0])


def kv_cache_bytes(meter: Meter, trial: Callable[[], int]) -> int:
    """Bytes for the KV cache. ``trial`` does the most that serving does, and returns the bytes of its own cache; what
    it has made must still be there."""
    before = meter.free()
    own = trial()
    needed = max(0, before - meter.left() - own)
    return max(0, before - needed - int(MARGIN * meter.total()))
