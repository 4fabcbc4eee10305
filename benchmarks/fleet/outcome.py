"""What can fail while a fleet is simulated, and what became of its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.fleet.engines import NEVER
from benchmarks.fleet.queues import Places, Times
from benchmarks.fleet.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Outage:
    """``engines`` die at ``at`` and are back after ``seconds``; or ``master`` of Redis (of the first cell) is away."""

    at: float
    seconds: float
    engines: range = range(0)
    master: int | None = None
    closed: bool = True
    """``on_store_failure``: requests are refused; else each worker lets in its share."""


@dataclass(frozen=True)
class Outcome:
    traffic: Traffic
    dispatched: Times
    """When each left its worker for an engine; NaN: it was refused."""
    first: Times
    """When its first token was with its client,"""
    last: Times
    """and its last."""
    engine: Places
    cell: Places
    worker: Places
    in_gateway: Times
    """Seconds until its reservation left,"""
    in_redis: Times
    """and until it was answered."""
    attempts: Places
    broken: npt.NDArray[np.bool_]
    """It had begun when its engine died."""
    busy: Mapping[str, float]
    """Of workers (mean), of the busiest master, of engines (mean and busiest)."""
    events: int = 0

    @property
    def refused(self) -> npt.NDArray[np.bool_]:
        return np.isnan(self.dispatched)

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        return ~np.isnan(self.last) & ~self.broken

    def ttft(self, *shares: float, since: float = 0.0, until: float = NEVER) -> list[float]:
        """Percentiles of seconds to the first token, of those that came within a time."""
        chosen = (self.traffic.at >= since) & (self.traffic.at < until) & ~np.isnan(self.first)
        took = self.first[chosen] - self.traffic.at[chosen]
        return [float(np.percentile(took, share)) for share in shares] if len(took) else [NEVER] * len(shares)

    def late(self, bound: float) -> float:
        """The share of requests without a first token within ``bound`` seconds."""
        return float(1 - np.mean(np.nan_to_num(self.first - self.traffic.at, nan=NEVER) <= bound))
