"""A limit of concurrency for a backend of which nobody says how much it can take: it follows from latency.

As in TCP Vegas, and Envoy's adaptive concurrency (https://www.envoyproxy.io/docs/envoy/latest/configuration/http/
http_filters/adaptive_concurrency_filter): where answers begin much later than they did at best, requests wait in a line
at the backend, and that line is better kept here, where it is shared fairly. Unlike there, nothing is limited before
there is evidence, and no traffic is held back to measure the best: a hosted model mostly takes whatever comes.

What is compared is alike: each kind of request (its model, whether it streams, the size of its prompt) has a best of
its own. If fewer requests at once make it no faster, it is not our doing, and what is usual now becomes the best.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict
from collections.abc import Callable, Hashable

MOST = 1000
"""Requests under way, as long as nothing speaks against them."""
LEAST = 4
TOLERANCE = 2.0
"""So many times as long as at best is no line yet."""
SAMPLES = 10
"""Requests by which it is judged, at least; and half of those under way, as the first of many are the fastest. Those
that were sent before the limit last changed tell nothing of it."""
FORGET = 600.0
"""Seconds in which a best that is never reached again grows by the factor e."""
SILENCE = 5.0
"""Seconds without an answer after which more are let in: that those under way take long is no proof of a line."""
MOST_KINDS = 1000


class _Best:
    """What one kind of request takes when nothing is in its way: a low quantile, in seconds."""

    __slots__ = ("at", "seconds")

    def __init__(self, seconds: float, at: float) -> None:
        self.seconds = seconds
        self.at = at

    def add(self, seconds: float, now: float) -> float:
        """How many times as long it was."""
        if seconds < self.seconds:
            self.seconds += 0.3 * (seconds - self.seconds)
        else:
            self.seconds = min(seconds, self.seconds * math.exp((now - self.at) / FORGET))
        self.at = now
        return seconds / self.seconds


class Gradient:
    def __init__(self, clock: Callable[[], float]) -> None:
        self.limit = MOST
        self._clock = clock
        self._best: OrderedDict[Hashable, _Best] = OrderedDict()
        self._changed = float("-inf")
        self._heard = float("-inf")
        self._ratios: list[float] = []
        self._busiest = 0
        self._before: tuple[int, float] | None = None
        """Since the limit is being lowered: what it was, and how slow it has been at most."""

    def learn(self, kind: Hashable, seconds: float, sent: float, in_flight: int) -> bool:
        """A request that was ``sent`` on began to be answered after ``seconds``. Whether the limit has changed."""
        now = self._heard = self._clock()
        best = self._best.get(kind)
        if best is None:
            best = self._best[kind] = _Best(max(seconds, 1e-6), now)
            if len(self._best) > MOST_KINDS:
                self._best.popitem(last=False)
        self._best.move_to_end(kind)
        ratio = best.add(max(seconds, 1e-6), now)
        self._busiest = max(self._busiest, in_flight)
        if sent < self._changed:
            return False
        self._ratios.append(ratio)
        enough = max(SAMPLES, min(self._busiest, self.limit) // 2)
        return len(self._ratios) >= enough and self._judge(statistics.median(self._ratios))

    def grow_in_silence(self) -> bool:
        """Somebody waits. Whether the limit has changed, as nothing is heard of those under way."""
        now = self._clock()
        if self.limit >= MOST or now - max(self._heard, self._changed) < SILENCE:
            return False
        return self._set(self._larger())

    def _judge(self, ratio: float) -> bool:
        self._ratios.clear()
        busiest, self._busiest = self._busiest, 0
        if ratio <= TOLERANCE:
            self._before = None
            # What is not in use need not grow.
            return busiest >= self.limit // 2 and self._set(self._larger())
        in_use = min(self.limit, max(busiest, LEAST))
        limit, slowness = self._before or (in_use, ratio)
        self._before = limit, max(slowness, ratio)
        if in_use <= max(LEAST, limit // 4) and ratio > 0.8 * slowness:
            for best in self._best.values():
                best.seconds *= ratio
            self._before = None
            return self._set(max(limit, self.limit))
        return self._set(int(in_use * max(0.5, TOLERANCE / ratio)))

    def _larger(self) -> int:
        return self.limit + max(1, math.isqrt(self.limit))

    def _set(self, limit: int) -> bool:
        limit = max(LEAST, min(limit, MOST))
        if limit == self.limit:
            return False
        self.limit, self._changed = limit, self._clock()
        self._ratios.clear()
        return True
