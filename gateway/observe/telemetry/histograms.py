"""``gen_ai.client.*``: histograms of all attempts, sampled or not.

Added up here, as the SDK's own instruments take 10 µs a value, which is 5 % of a request; exported by the SDK.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass, field, replace

from gateway.types import Usage

Labels = tuple[tuple[str, str | int], ...]

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = tuple(float(4**power) for power in range(14))


@dataclass(slots=True)
class Series:
    """The values of one set of labels."""

    bounds: tuple[float, ...]
    buckets: list[int]
    count: int = 0
    sum: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, value: float) -> None:
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.sum += value
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value


@dataclass(slots=True)
class Histogram:
    name: str
    unit: str
    about: str
    bounds: tuple[float, ...]
    series: dict[Labels, Series] = field(default_factory=dict)

    def of(self, labels: Labels) -> Series:
        found = self.series.get(labels)
        if found is None:
            found = self.series[labels] = Series(self.bounds, [0] * (len(self.bounds) + 1))
        return found

    def copy(self) -> Histogram:
        series = {
            labels: replace(one, buckets=[*one.buckets]) for labels, one in self.series.items() if one.count
        }
        return replace(self, series=series)


class ClientMetrics:
    """Names and boundaries are the conventions' own. Labels come from the policy, so that they are bounded."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.duration = Histogram(
            "gen_ai.client.operation.duration", "s", "GenAI operation duration.", SECONDS
        )
        self.first_chunk = Histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            "s",
            "From the sending of a streaming request to its first chunk.",
            SECONDS,
        )
        self.tokens = Histogram(
            "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.", TOKENS
        )

    def snapshot(self) -> list[Histogram]:
        """Those with any value."""
        with self.lock:
            copies = [one.copy() for one in (self.duration, self.first_chunk, self.tokens)]
        return [one for one in copies if one.series]


class AttemptMetrics:
    """The series of attempts with the same labels, looked up once."""

    def __init__(self, metrics: ClientMetrics, labels: Labels) -> None:
        self._metrics = metrics
        self._labels = labels
        self._ok = metrics.duration.of(labels)
        self._first_chunk = metrics.first_chunk.of(labels)
        self._input = metrics.tokens.of((*labels, ("gen_ai.token.type", "input")))
        self._output = metrics.tokens.of((*labels, ("gen_ai.token.type", "output")))

    def add(self, seconds: float, error: str | None, first_chunk: float | None, usage: Usage | None) -> None:
        """One attempt has ended, by ``error`` if it failed; ``first_chunk`` (seconds) only where it was streamed."""
        metrics = self._metrics
        with metrics.lock:
            if error is None:
                self._ok.add(seconds)
            else:
                metrics.duration.of((*self._labels, ("error.type", error))).add(seconds)
            if first_chunk is not None:
                self._first_chunk.add(first_chunk)
            if usage is not None:
                self._input.add(usage.prompt)
                self._output.add(usage.completion)
