"""``/metrics`` of one worker: processor time, and for how long the event loop stands still

A pair is a counter and a histogram with one set of labels. The longest pause is that of one slice of samples, as the
median of some renderings.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

from benchmarks.growth.timing import REPEATS
from gateway.observe.metrics import Metrics
from gateway.observe.prometheus import buffers

COLUMNS = ("pairs", "all, ms", "longest pause, ms", "kB")
SIZES = (100, 1_000, 10_000)


def rows() -> Iterator[Sequence[object]]:
    for size in SIZES:
        metrics = Metrics()
        for number in range(min(size, buffers.MAX_SERIES)):
            metrics.tokens.labels(f"model-{number}", "in", "answer").inc()
            metrics.seconds.labels(f"model-{number}").observe(0.1)
        found = [_rendered(metrics) for _ in range(REPEATS)]
        alls, longest, sizes = zip(*found, strict=True)
        yield size, statistics.median(alls), statistics.median(longest), sizes[0] // 1000


def _rendered(metrics: Metrics) -> tuple[float, float, int]:
    metrics.flush()
    pauses, size = [], 0
    slices = metrics.slices()
    while True:
        began = time.thread_time_ns()
        part = next(slices, None)
        pauses.append((time.thread_time_ns() - began) / 1e6)
        if part is None:
            return sum(pauses), max(pauses), size
        size += len(part)
