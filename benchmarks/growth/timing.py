"""Processor time of this thread, and of the whole process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

REPEATS = 5


def thread_microseconds(work: Callable[[], object], times: int) -> float:
    """Processor time of this thread for one of ``times`` that ``work`` does together: the median of some repeats."""
    found = []
    for _ in range(REPEATS):
        began = time.thread_time_ns()
        work()
        found.append((time.thread_time_ns() - began) / 1000 / times)
    return statistics.median(found)


def process_seconds(work: Callable[[], object]) -> float:
    """Processor time of the process, all threads together, for one call of ``work``."""
    began = time.process_time()
    work()
    return time.process_time() - began
