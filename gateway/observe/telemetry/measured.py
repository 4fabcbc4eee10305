"""``gen_ai.client.*``: histograms and counters of all attempts, sampled or not.

Added up here, as the SDK's own instruments take 10 µs a value, which is 5 % of a request; exported by the SDK.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter as Tally
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from gateway.types import Usage

Labels = tuple[tuple[str, str | int], ...]

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOGETHER = 1000
"""Values of a series that are sorted at a time."""
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
    _fresh: list[float] = field(default_factory=list)
    """Values that are in none of the above yet: many at once are sorted in a third of the time."""

    def add(self, value: float) -> None:
        self._fresh.append(value)
        if len(self._fresh) >= _TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Sort what came since the last time into the buckets."""
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return
        for bucket, values in Tally(map(partial(bisect_left, self.bounds), fresh)).items():
            self.buckets[bucket] += values
        self.count += len(fresh)
        self.sum += sum(fresh)
        self.low, self.high = min(self.low, *fresh), max(self.high, *fresh)


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
        for one in self.series.values():
            one.settle()
        series = {
            labels: replace(one, buckets=[*one.buckets]) for labels, one in self.series.items() if one.count
        }
        return replace(self, series=series)


@dataclass(slots=True)
class Counter:
    name: str
    unit: str
    about: str
    values: dict[Labels, int] = field(default_factory=dict)

    def add(self, labels: Labels, value: int) -> None:
        self.values[labels] = self.values.get(labels, 0) + value

    def copy(self) -> Counter:
        return replace(self, values={**self.values})


class Measured(NamedTuple):
    """What is measured of attempts, under the conventions' newest names; ``metric_names`` has those of others.

    Labels come from the policy, so that they are bounded.
    """

    duration: Histogram
    first_chunk: Histogram
    input_tokens: Histogram
    output_tokens: Histogram
    cache_read: Counter
    cache_write: Counter
    reasoning: Counter


class ClientMetrics:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        name = "gen_ai.client.inference"
        usage, token = f"{name}.usage", "{token}"
        first_chunk = "From the sending of a streaming request to its first chunk."
        self.measured = Measured(
            Histogram(f"{name}.duration", "s", "From the sending of a request to its end.", SECONDS),
            Histogram(f"{name}.time_to_first_chunk", "s", first_chunk, SECONDS),
            Histogram(f"{name}.operation.input_tokens", token, "Tokens of a prompt.", TOKENS),
            Histogram(f"{name}.operation.output_tokens", token, "Tokens of an answer.", TOKENS),
            Counter(f"{usage}.cache_read.input_tokens", token, "Read from a provider's cache."),
            Counter(f"{usage}.cache_write.input_tokens", token, "Put into a provider's cache."),
            Counter(f"{usage}.reasoning.output_tokens", token, "Used up by reasoning."),
        )

    def snapshot(self) -> Measured:
        with self.lock:
            return Measured._make(one.copy() for one in self.measured)


class AttemptMetrics:
    """The series of attempts with the same labels, looked up once."""

    def __init__(self, metrics: ClientMetrics, labels: Labels) -> None:
        self._lock = metrics.lock
        self._measured = measured = metrics.measured
        self._labels = labels
        self._ok = measured.duration.of(labels)
        self._first_chunk = measured.first_chunk.of(labels)
        self._input = measured.input_tokens.of(labels)
        self._output = measured.output_tokens.of(labels)

    def add(self, seconds: float, error: str | None, first_chunk: float | None, usage: Usage | None) -> None:
        """One attempt has ended, by ``error`` if it failed; ``first_chunk`` (seconds) only where it was streamed."""
        with self._lock:
            if error is None:
                self._ok.add(seconds)
            else:
                self._measured.duration.of((*self._labels, ("error.type", error))).add(seconds)
            if first_chunk is not None:
                self._first_chunk.add(first_chunk)
            if usage is not None:
                self._input.add(usage.prompt)
                self._output.add(usage.completion)
                if usage.cached or usage.cache_write or usage.reasoning:
                    self._measured.cache_read.add(self._labels, usage.cached)
                    self._measured.cache_write.add(self._labels, usage.cache_write)
                    self._measured.reasoning.add(self._labels, usage.reasoning)
