"""Metrics that are cheap to update: values are buffered in plain numbers, and flushed to prometheus_client
periodically.

With several workers each of its values is in a shared file, where an increment takes 1 to 2 µs and an observation 4; a
request makes a dozen. For the event loop's thread only.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import compress, repeat
from typing import Generic, Protocol, TypeVar

from prometheus_client import Counter, Gauge, Histogram


class BufferedCounter:
    """A counter or a gauge; with None its values are dropped."""

    __slots__ = ("_metric", "flushed", "pending")

    def __init__(self, metric: Counter | Gauge | None) -> None:
        self._metric = metric
        self.pending = 0.0
        """What is added with the next flush. What each request counts is added to it in place, without a call."""
        self.flushed = time.monotonic()

    def inc(self, amount: float = 1) -> None:
        self.pending += amount

    def dec(self) -> None:
        """For gauges only."""
        self.pending -= 1

    @property
    def value(self) -> float:
        """This process's."""
        return self.pending + (self._metric._value.get() if self._metric is not None else 0.0)

    def flush(self) -> None:
        """Pass on what is pending, if anything is."""
        more = self.pending
        if more:
            self.pending = 0.0
            self.flushed = time.monotonic()
            if self._metric is not None:
                self._metric.inc(more)


class BufferedHistogram:
    """A histogram; with None its values are dropped."""

    __slots__ = ("_bounds", "_metric", "_values", "flushed", "observe")

    def __init__(self, metric: Histogram | None) -> None:
        self._metric = metric
        self._bounds: list[float] = metric._upper_bounds if metric is not None else []
        self._values: list[float] = []
        self.observe: Callable[[float], None] = self._values.append
        """Add a value: in C, as a request adds half a dozen. It comes into its bucket with the next flush."""
        self.flushed = time.monotonic()

    def observe_each(self, value: float, times: int) -> None:
        """``value``, so many times."""
        self._values.extend(repeat(value, times))

    @property
    def bounds(self) -> Sequence[float]:
        """The upper bounds of its buckets, the last infinite."""
        return self._bounds

    @property
    def counts(self) -> list[float]:
        """This process's, of each bucket by itself."""
        flushed = [one.get() for one in self._metric._buckets] if self._metric is not None else []
        return [before + more for before, more in zip(flushed, self._pending(), strict=False)]

    def flush(self) -> None:
        """Pass on what is pending, if anything is."""
        values = self._values
        if not values:
            return
        self.flushed = time.monotonic()
        if self._metric is not None:
            # prometheus_client itself only takes single values.
            self._metric._sum.inc(sum(values))
            counts = self._pending()
            for bucket, count in compress(zip(self._metric._buckets, counts, strict=False), counts):
                bucket.inc(count)
        values.clear()

    def _pending(self) -> list[int]:
        """How many values wait for each bucket."""
        bounds, counts = self._bounds, [0] * (len(self._bounds) + 1)
        for value in self._values:
            counts[bisect_left(bounds, value)] += 1
        return counts


class BufferedChild(Protocol):
    def flush(self) -> None:
        """Pass on what is pending, if anything is."""
        ...

    @property
    def flushed(self) -> float:
        """When it last had a value to pass on (``time.monotonic()``)."""
        ...


_Child = TypeVar("_Child", bound=BufferedChild)

MAX_SERIES = 10_000
"""Sets of labels that one metric may have in a process."""
IDLE = 3600.0
"""Seconds without a new value, after which a set of labels makes way for another."""
CHECK_EVERY = 60.0
"""Seconds between two searches for idle ones."""
OTHER = "other"
"""The value of all labels of what exceeds ``MAX_SERIES``."""


class Family(dict[tuple[str, ...], _Child], Generic[_Child]):
    """A metric with labels: its children by the values of those, made when they are first asked for.

    They are kept, as prometheus_client's own look-up takes a lock, and longer than the update itself. Where
    ``has_space`` says no, values of new children are ``dropped``.

    ``remove`` removes a set of labels from the metric; without it they stay for as long as the process. ``shared`` are
    the labels under which others are counted.
    """

    def __init__(
        self,
        child: Callable[[tuple[str, ...]], _Child],
        *,
        dropped: _Child,
        has_space: Callable[[], bool],
        remove: Callable[..., object] | None = None,
        shared: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda values: values,
    ) -> None:
        super().__init__()
        self._child = child
        self._dropped = dropped
        self._has_space = has_space
        self._remove = remove
        self._shared = shared
        self._checked = float("-inf")

    def labels(self, *values: str) -> _Child:
        return self[values]

    def flush(self) -> None:
        for child in self.values():
            child.flush()
        self._dropped.flush()

    def __missing__(self, values: tuple[str, ...]) -> _Child:
        if (shared := self._shared(values)) != values:
            return self[shared]
        if len(self) >= MAX_SERIES:
            self._remove_idle()
        if len(self) >= MAX_SERIES:
            values = (OTHER,) * len(values)
            if values in self:
                return self[values]
        if not self._has_space():
            return self._dropped
        child = self[values] = self._child(values)
        return child

    def _remove_idle(self) -> None:
        now = time.monotonic()
        if self._remove is None or now - self._checked < CHECK_EVERY:
            return
        self._checked = now
        for values, child in list(self.items()):
            if now - child.flushed > IDLE:
                del self[values]
                self._remove(*values)
