"""The bundled engine's load: backends poll it, admission decides by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineGpu:
    """What is not known is ``None``."""

    name: str | None = None
    utilization: float | None = None
    """The share of the time in which it computes."""
    memory_utilization: float | None = None
    """And in which its memory is read or written."""
    memory_used: float | None = None
    """Bytes."""
    memory_total: float | None = None
    pcie: float | None = None
    """Bytes/s, in both directions together."""
    nvlink: float | None = None
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""
    power_limit: float | None = None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Speeds are tokens/s over all its requests, 0 where not yet known."""

    running: int = 0
    waiting: int = 0
    slots: int = 0
    """Requests that it runs at once; 0 where unknown."""
    kv_usage: float = 0.0
    """The share of the KV cache's blocks that running requests hold."""
    kv_tokens: int = 0
    """For how many the KV cache has room; 0 where unknown."""
    prompts: float = 0.0
    """Tokens of prompts since it was started; 0 where unknown."""
    cached: float = 0.0
    """Of these, the tokens that it found in its KV cache."""
    prefill: float = 0.0
    decode: float = 0.0
    gpus: tuple[EngineGpu, ...] = ()
    handover: str = ""
    """Where it hands KV blocks of prompts over to other engines; empty: nowhere."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Of an engine of several models, the state of each: ``loaded``, ``loading``, ``sleeping``, ``unloaded`` …"""

    @property
    def saturation(self) -> float:
        used = (self.running + self.waiting) / self.slots if self.slots else float(self.waiting > 0)
        return min(1.0, max(used, self.kv_usage))
