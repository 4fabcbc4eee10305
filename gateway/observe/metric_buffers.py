"""Metrics that are cheap to update: values are buffered in plain numbers, and flushed to prometheus_client
periodically.

With several workers each of its values is in a shared file, where an increment takes 1 to 2 µs and an observation 4; a
request makes a dozen. For the event loop's thread only.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Generic, Protocol, TypeVar

from prometheus_client import Counter, Gauge, Histogram


class Buffered(Protocol):
    def flush(self) -> None:
        """Pass on what was buffered."""
        ...


class BufferedCounter:
    """A counter or a gauge; with None its values are dropped."""

    __slots__ = ("_changed", "_metric", "_more", "_waiting", "flushed")

    def __init__(self, metric: Counter | Gauge | None, changed: list[Buffered]) -> None:
        self._metric = metric
        self._changed = changed
        self._more = 0.0
        self._waiting = False
        self.flushed = time.monotonic()

    def inc(self, amount: float = 1) -> None:
        self._more += amount
        if not self._waiting:
            self._waiting = True
            self._changed.append(self)

    def dec(self) -> None:
        """For gauges only."""
        self._more -= 1
        if not self._waiting:
            self._waiting = True
            self._changed.append(self)

    @property
    def value(self) -> float:
        """This process's."""
        return self._more + (self._metric._value.get() if self._metric is not None else 0.0)

    def flush(self) -> None:
        more, self._more, self._waiting = self._more, 0.0, False
        self.flushed = time.monotonic()
        if more and self._metric is not None:
            self._metric.inc(more)


class BufferedHistogram:
    """A histogram; with None its values are dropped."""

    __slots__ = ("_bounds", "_changed", "_counts", "_metric", "_sum", "_waiting", "flushed")

    def __init__(self, metric: Histogram | None, changed: list[Buffered]) -> None:
        self._metric = metric
        self._changed = changed
        self._bounds: list[float] = metric._upper_bounds if metric is not None else []
        self._counts = [0] * (len(self._bounds) + 1)
        self._waiting = False
        self._sum = 0.0
        self.flushed = time.monotonic()

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times
        if not self._waiting:
            self._waiting = True
            self._changed.append(self)

    @property
    def bounds(self) -> Sequence[float]:
        """The upper bounds of its buckets, the last infinite."""
        return self._bounds

    @property
    def counts(self) -> list[float]:
        """This process's, of each bucket by itself."""
        flushed = [one.get() for one in self._metric._buckets] if self._metric is not None else []
        return [before + more for before, more in zip(flushed, self._counts, strict=False)]

    def flush(self) -> None:
        # prometheus_client itself only takes single values.
        counts, self._counts = self._counts, [0] * len(self._counts)
        self._waiting = False
        total, self._sum = self._sum, 0.0
        self.flushed = time.monotonic()
        if self._metric is None:
            return
        self._metric._sum.inc(total)
        for bucket, count in compress(zip(self._metric._buckets, counts, strict=False), counts):
            bucket.inc(count)


class BufferedChild(Buffered, Protocol):
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

    ``remove`` removes a set of labels from the metric; without it they stay for as long as the process.
    """

    def __init__(
        self,
        child: Callable[[tuple[str, ...]], _Child],
        *,
        dropped: _Child,
        has_space: Callable[[], bool],
        remove: Callable[..., object] | None = None,
    ) -> None:
        super().__init__()
        self._child = child
        self._dropped = dropped
        self._has_space = has_space
        self._remove = remove
        self._checked = float("-inf")

    def labels(self, *values: str) -> _Child:
        return self[values]

    def __missing__(self, values: tuple[str, ...]) -> _Child:
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
