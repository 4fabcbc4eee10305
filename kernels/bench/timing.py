"""Times a case on a GPU: the median of many runs, over inputs that exceed the caches."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch

from kernels.bench.case import Case, size

MOST_COPIES = 512
"""Inputs so small that this many fit the L2 cache are likely to be cached in the engine, too."""
FEWEST_RUNS = 8
"""Runs in one CUDA graph, so that the cost of its launch is not attributed to the kernel."""
SHORTEST_RUNS = 5
SECONDS = 0.25
"""Seconds of measuring for each case."""


def seconds(case: Case, device: torch.device, effort: float = 1.0) -> tuple[float, bool]:
    """Of one run, and whether it was recorded as a CUDA graph, as the engine records it.

    Runs go round over copies of the inputs three times as large as the L2 cache, or over ``MOST_COPIES`` of them.
    Without a graph the launches' cost is in the result as well. ``effort``: a share of ``SECONDS``.
    """
    inputs = case.make(device)
    cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 << 20)
    count = max(1, min(MOST_COPIES, -(-3 * cache // max(1, size(inputs)))))
    copies = [inputs, *(deepcopy(inputs) for _ in range(count - 1))]
    rounds = -(-FEWEST_RUNS // count)

    def once() -> None:
        for copy in copies * rounds:
            case.run(*copy)

    once()
    torch.cuda.synchronize(device)
    graph = _record(once, device)
    play = graph.replay if graph is not None else once
    first = _times(play, 2)[-1]
    times = _times(play, int(min(100, max(SHORTEST_RUNS, effort * SECONDS / max(first, 1e-6)))))
    return statistics.median(times) / (count * rounds), graph is not None


def _record(once: Callable[[], None], device: torch.device) -> Any | None:
    """``None`` if it cannot be recorded, for example because it synchronises with the device."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            once()
    except RuntimeError:
        torch.cuda.synchronize(device)
        return None
    return graph


def _times(play: Callable[[], None], runs: int) -> list[float]:
    """Seconds of each of ``runs``."""
    starts, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(runs)] for _ in range(2))
    play()
    for start, end in zip(starts, ends, strict=True):
        start.record()
        play()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1000 for start, end in zip(starts, ends, strict=True)]
