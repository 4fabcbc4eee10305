"""``gen_ai.client.*``: histograms of all attempts, sampled or not.

Added up here, as the SDK's own instruments take 10 µs a value, which is 5 % of a request; exported by the SDK.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str | int], ...]

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = tuple(float(4**power) for power in range(14))


@dataclass(slots=True)
class Series:
    """The values of one set of labels."""

    buckets: list[int]
    count: int = 0
    sum: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")


@dataclass(slots=True)
class Histogram:
    name: str
    unit: str
    about: str
    bounds: tuple[float, ...]
    series: dict[Labels, Series] = field(default_factory=dict)

    def add(self, labels: Labels, value: float) -> None:
        found = self.series.get(labels)
        if found is None:
            found = self.series[labels] = Series([0] * (len(self.bounds) + 1))
        found.buckets[bisect_left(self.bounds, value)] += 1
        found.count += 1
        found.sum += value
        found.low, found.high = min(found.low, value), max(found.high, value)

    def copy(self) -> Histogram:
        series = {
            labels: Series([*one.buckets], one.count, one.sum, one.low, one.high)
            for labels, one in self.series.items()
        }
        return Histogram(self.name, self.unit, self.about, self.bounds, series)


class ClientMetrics:
    """Names and boundaries are the conventions' own. Labels come from the policy, so that they are bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._duration = Histogram(
            "gen_ai.client.operation.duration", "s", "GenAI operation duration.", SECONDS
        )
        self._first_chunk = Histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            "s",
            "From the sending of a streaming request to its first chunk.",
            SECONDS,
        )
        self._tokens = Histogram(
            "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.", TOKENS
        )

    def attempt(
        self,
        labels: Labels,
        *,
        seconds: float,
        error: str | None,
        first_chunk: float | None,
        tokens: tuple[int, int] | None,
    ) -> None:
        """One attempt has ended, by ``error`` if it failed. ``tokens``: input and output."""
        with self._lock:
            self._duration.add(labels if error is None else (*labels, ("error.type", error)), seconds)
            if first_chunk is not None:
                self._first_chunk.add(labels, first_chunk)
            if tokens is not None:
                for kind, count in zip(("input", "output"), tokens, strict=True):
                    self._tokens.add((*labels, ("gen_ai.token.type", kind)), count)

    def snapshot(self) -> Iterator[Histogram]:
        """Those with any value."""
        with self._lock:
            copies = [one.copy() for one in (self._duration, self._first_chunk, self._tokens)]
        return (one for one in copies if one.series)
