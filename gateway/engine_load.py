"""The bundled engine's load: backends poll it, admission decides by it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Speeds are tokens/s over all its requests, 0 where not yet known."""

    running: int = 0
    waiting: int = 0
    slots: int = 0
    """Requests that it runs at once; 0 where unknown."""
    kv_usage: float = 0.0
    """The share of the KV cache's blocks that running requests hold."""
    prefill: float = 0.0
    decode: float = 0.0

    @property
    def saturation(self) -> float:
        used = (self.running + self.waiting) / self.slots if self.slots else float(self.waiting > 0)
        return min(1.0, max(used, self.kv_usage))
