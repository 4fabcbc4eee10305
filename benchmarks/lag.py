"""By how much a gateway's event loop came late while a workload ran, by its own histogram on ``/metrics``."""

from __future__ import annotations

import math
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

NAME = "tollgate_event_loop_lag_seconds"
BOUND = 0.005
"""Seconds, a bound of the histogram: at most this, 99 times of 100, is the aim."""


def read(port: int, token: str) -> dict[float, float]:
    """How many samples so far were at most so many seconds late, by the histogram's bounds."""
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"authorization": f"Bearer {token}"}
    )
    text = urllib.request.urlopen(asked, timeout=30).read().decode()
    counts: dict[float, float] = {}
    for family in text_string_to_metric_families(text):
        if family.name == NAME:
            for sample in family.samples:
                if sample.name == f"{NAME}_bucket":
                    bound = float(sample.labels["le"])
                    counts[bound] = counts.get(bound, 0.0) + sample.value
    if not counts:
        raise SystemExit(f"/metrics on port {port} has no {NAME}")
    return counts


def between(before: Mapping[float, float], after: Mapping[float, float]) -> dict[str, float]:
    """The 99th percentile, in milliseconds, of the samples between two readings (on a line from one bound to the
    next), and the share of them within ``BOUND``."""
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = counts[math.inf]
    if not total:
        return {"lag_p99_ms": 0.0, "lag_met": 1.0}
    rank, low, below = 0.99 * total, 0.0, 0.0
    found = math.inf
    for bound, count in counts.items():
        if count >= rank:
            found = low + (bound - low) * (rank - below) / (count - below) if math.isfinite(bound) else low
            break
        low, below = bound, count
    return {"lag_p99_ms": found * 1e3, "lag_met": counts[BOUND] / total}
