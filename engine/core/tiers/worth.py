"""Which blocks are worth loading: those that come sooner than they would be computed."""

from __future__ import annotations

from collections.abc import Sequence


def worth_loading(
    here: Sequence[bool],
    *,
    block_bytes: int,
    block_tokens: int,
    prefill_speed: float,
    load_bandwidth: float,
    read_bandwidth: float,
) -> int:
    """How many of a chain's next blocks, the first ones, to load: as many as save most seconds.

    ``here``: of each, whether it is in host memory, else on disk. Speeds are tokens and bytes a second; what is 0 is
    not known, and counts as if it cost nothing, or saved all: it is known after the first time.
    """
    if not prefill_speed:
        return len(here)
    computing = block_tokens / prefill_speed
    loading = block_bytes / load_bandwidth if load_bandwidth else 0.0
    reading = block_bytes / read_bandwidth if read_bandwidth else 0.0
    saved = best = 0.0
    count = 0
    for number, in_memory in enumerate(here, 1):
        saved += computing - loading - (0.0 if in_memory else reading)
        if saved > best:
            best, count = saved, number
    return count
