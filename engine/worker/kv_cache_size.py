"""How many KV blocks there are: as configured, or as many as fit beside everything else that serving needs.

On a GPU a trial measures that: the warm-up, whose first step is the largest that can come, and the CUDA graphs, with a
cache just large enough for a step. What free memory has shrunk by afterwards, without the trial's own cache, is taken
by activations, graphs, libraries' workspaces and kernels' code; the real cache gets the rest, less a margin.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Protocol

import torch

from engine.config import EngineConfig
from engine.core.block_demand import BlockDemand
from engine.errors import StartupError

MARGIN = 0.05
"""Share of the device's memory for fragmentation, and for other processes."""
_CPU_SHARE = 0.25
"""Share of a CPU's free memory, which other programs use too."""


class Meter(Protocol):
    """A device's memory, in bytes."""

    def total(self) -> int: ...

    def free(self) -> int:
        """Free memory, including what this process's allocator holds but does not use."""
        ...

    def left(self) -> int:
        """Free memory, without what this process's allocator holds: its peak use counts as used."""
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


def available_bytes(meter: Meter, trial: Callable[[], int]) -> int:
    """For the KV cache. ``trial`` does the most that serving can do, and returns the bytes of its own cache; what it
    has allocated must not be released yet."""
    before = meter.free()
    own = trial()
    needed = max(0, before - meter.left() - own)
    return max(0, before - needed - int(MARGIN * meter.total()))


def count_blocks(
    config: EngineConfig,
    demand: BlockDemand,
    *,
    block_bytes: int,
    max_model_len: int,
    device: torch.device,
    ranks: int,
    profile: Callable[[], int] | None,
    states: int = 0,
) -> int:
    """KV blocks of ``block_bytes`` each, of which ``demand`` says how many a request needs. ``config`` is for
    ``device``; ``ranks`` share its memory on a CPU.
    ``profile`` measures the bytes that a GPU has for them, where they are not configured.
    ``states``: bytes of what layers keep of requests beside them, which ``profile`` knows of.

    Raises ``StartupError`` if there is too little memory.
    """
    blocks = _configured(config, block_bytes)
    if blocks is None:
        enough = (config.max_num_seqs or 1) * demand.of(max_model_len)
        if profile is None:
            free = int(_CPU_SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / ranks)
            if states > free // 2:
                raise StartupError(
                    f"The states that layers keep of {config.max_num_seqs} sequences need {states / 2**30:.1f} GiB, "
                    f"more than half of the {free / 2**30:.1f} GiB for the cache, a quarter of the free memory: lower "
                    "--max-num-seqs, or give --kv-cache-memory."
                )
            blocks = max(1, min(enough, (free - states) // block_bytes))
        else:
            blocks = min(enough, profile() // block_bytes)
            if blocks < 1:
                raise StartupError(
                    f"After weights, graphs and the largest step {device} has no memory left for a KV cache: lower "
                    "--max-batched-tokens or --max-num-seqs, or make the weights smaller with --quantization."
                )
    # A CPU commits memory on first use, so a cache may exceed what is free now, but not what there is.
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device.type == "cpu" and blocks * block_bytes + states > there:
        beside = f" beside {states / 2**30:.1f} GiB of states (--max-num-seqs)" if states else ""
        raise StartupError(
            f"A KV cache of {blocks} blocks is {blocks * block_bytes / 2**30:.1f} GiB{beside}, more than this machine "
            "has: lower --kv-cache-memory or --kv-cache-blocks."
        )
    return blocks


def _configured(config: EngineConfig, block_bytes: int) -> int | None:
    if config.kv_cache_blocks is not None:
        return config.kv_cache_blocks
    if config.kv_cache_memory is None:
        return None
    if config.kv_cache_memory < block_bytes:
        raise StartupError(
            f"--kv-cache-memory {config.kv_cache_memory} is less than one KV block of {block_bytes} bytes."
        )
    return config.kv_cache_memory // block_bytes
