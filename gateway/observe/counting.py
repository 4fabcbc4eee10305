"""Metrics that are cheap to count: figures gather in plain numbers, and go to prometheus_client from time to time.

With several workers each of its values lies in a shared file, and one count takes 1 µs there or 2, a time 4; a request
counts a dozen. For the event loop's thread alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from prometheus_client import Counter, Gauge, Histogram


class Gathered(Protocol):
    def flush(self) -> None:
        """Hand over what has come together since the last time."""
        ...


class Count:
    """A counter or a gauge; None is one that nobody hears of."""

    __slots__ = ("_changed", "_metric", "_more", "_waiting")

    def __init__(self, metric: Counter | Gauge | None, changed: list[Gathered]) -> None:
        self._metric = metric
        self._changed = changed
        self._more = 0.0
        self._waiting = False

    def inc(self, amount: float = 1) -> None:
        self._more += amount
        if not self._waiting:
            self._waiting = True
            self._changed.append(self)

    def dec(self, amount: float = 1) -> None:
        """Of a gauge only."""
        self.inc(-amount)

    def flush(self) -> None:
        more, self._more, self._waiting = self._more, 0.0, False
        if more and self._metric is not None:
            self._metric.inc(more)


class Times:
    """A histogram; None is one that nobody hears of."""

    __slots__ = ("_bounds", "_changed", "_counts", "_metric", "_sum")

    def __init__(self, metric: Histogram | None, changed: list[Gathered]) -> None:
        self._metric = metric
        self._changed = changed
        self._bounds: list[float] = metric._upper_bounds if metric is not None else []
        self._counts: dict[int, int] = {}
        self._sum = 0.0

    def observe(self, value: float) -> None:
        if not self._counts:
            self._changed.append(self)
        place = bisect_left(self._bounds, value)
        self._counts[place] = self._counts.get(place, 0) + 1
        self._sum += value

    def flush(self) -> None:
        # prometheus_client itself takes values one by one only.
        counts, self._counts = self._counts, {}
        total, self._sum = self._sum, 0.0
        if self._metric is None:
            return
        self._metric._sum.inc(total)
        for place, count in counts.items():
            self._metric._buckets[place].inc(count)


_Child = TypeVar("_Child")


class Family(Generic[_Child]):
    """A metric with labels. What ``labels`` finds is remembered: prometheus_client's own look-up takes a lock, and
    longer than the counting itself. Where there is no ``room`` for one more, it is ``untold``, until there is.
    """

    def __init__(
        self, child: Callable[[tuple[str, ...]], _Child], *, untold: _Child, room: Callable[[], bool]
    ) -> None:
        self._child = child
        self._untold = untold
        self._room = room
        self._children: dict[tuple[str, ...], _Child] = {}

    def labels(self, *values: str) -> _Child:
        child = self._children.get(values)
        if child is None:
            if not self._room():
                return self._untold
            child = self._children[values] = self._child(values)
        return child
