"""What a start spends its time and memory on."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Stopwatch:
    def __init__(self) -> None:
        self._last = time.monotonic()
        self.laps: dict[str, float] = {}
        """Seconds by name, in order."""

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = now - self._last
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.laps.items())
        return f"{sum(self.laps.values()):.1f} s: {parts}"


def describe(memory: Mapping[str, int]) -> str:
    """``memory`` as ``engine.messages.Ready`` has it."""
    weights, predicted, cache, process = (
        f"{memory[name] / 2**20:,.0f} MiB" for name in ("weights", "weights_predicted", "kv_cache", "process")
    )
    states = f", states {memory['states'] / 2**20:,.0f} MiB" if memory["states"] else ""
    host = f", host memory {memory['host_kv'] / 2**20:,.0f} MiB" if memory.get("host_kv") else ""
    return (
        f"weights {weights} (predicted {predicted}), KV cache up to {cache}{host}{states}, process {process}"
    )
