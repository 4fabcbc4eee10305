"""What the bundled engine tells of its load: backends ask for it, admission decides by it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the bundled engine tells of itself. Speeds are tokens/s over all its requests, 0 where not yet known."""

    running: int = 0
    waiting: int = 0
    places: int = 0
    """Requests that it runs at once; 0 where it does not say."""
    kv_usage: float = 0.0
    """The share of the KV cache's blocks that running requests hold."""
    prefill: float = 0.0
    decode: float = 0.0

    @property
    def saturation(self) -> float:
        seats = (self.running + self.waiting) / self.places if self.places else float(self.waiting > 0)
        return min(1.0, max(seats, self.kv_usage))
