"""An adaptive concurrency limit, from latency, for a backend whose limit the policy does not state.

As in TCP Vegas, and Envoy's adaptive concurrency (https://www.envoyproxy.io/docs/envoy/latest/configuration/http/
http_filters/adaptive_concurrency_filter): where answers begin much later than at best, requests queue at the backend,
and that queue is better kept here, where it is shared fairly. Unlike there, nothing is limited without evidence, and
no traffic is held back to measure the minimum: most hosted models take whatever comes.

Each kind of request (its model, whether it streams, the size of its prompt) has a minimum of its own. If fewer requests
at once make it no faster, the load is not ours, and the present latency becomes the minimum.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_LIMIT = 1000
"""In flight, without evidence of a queue."""
MIN_LIMIT = 4
TOLERANCE = 2.0
"""Latency up to so many times the minimum is no sign of a queue."""
SAMPLES = 10
"""The fewest requests by which it is judged; and half of those in flight, as the first of many are the fastest. Those
sent before the limit last changed do not count."""
BEST_DECAY = 600.0
"""Seconds in which a minimum that is not reached again grows by the factor e."""
SILENCE = 5.0
"""Seconds without an answer after which more are admitted: long answers are no proof of a queue."""
MAX_KINDS = 1000


class _Best:
    """The minimum latency of one kind of request: a low quantile, in seconds."""

    __slots__ = ("at", "seconds")

    def __init__(self, seconds: float, at: float) -> None:
        self.seconds = seconds
        self.at = at

    def add(self, seconds: float, now: float) -> float:
        """``seconds`` as a multiple of the minimum."""
        if seconds < self.seconds:
            self.seconds += 0.3 * (seconds - self.seconds)
        else:
            self.seconds = min(seconds, self.seconds * math.exp((now - self.at) / BEST_DECAY))
        self.at = now
        return seconds / self.seconds


class AdaptiveLimit:
    def __init__(self, clock: Callable[[], float]) -> None:
        self.limit = MAX_LIMIT
        self._clock = clock
        self._best: OrderedDict[Hashable, _Best] = OrderedDict()
        self._changed = float("-inf")
        self._last_answer = float("-inf")
        self._ratios: list[float] = []
        self._busiest = 0
        self._first_decrease: tuple[int, float] | None = None
        """Since the limit began to fall: what it was, and the largest multiple since."""

    def learn(self, kind: Hashable, seconds: float, sent: float, in_flight: int) -> bool:
        """A request dispatched at ``sent`` began to be answered after ``seconds``. Whether the limit has changed."""
        now = self._last_answer = self._clock()
        best = self._best.get(kind)
        if best is None:
            best = self._best[kind] = _Best(max(seconds, 1e-6), now)
            if len(self._best) > MAX_KINDS:
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
        """For when requests wait and none is answered. Returns whether the limit has changed."""
        now = self._clock()
        if self.limit >= MAX_LIMIT or now - max(self._last_answer, self._changed) < SILENCE:
            return False
        return self._set(self._increased())

    def _judge(self, ratio: float) -> bool:
        self._ratios.clear()
        busiest, self._busiest = self._busiest, 0
        if ratio <= TOLERANCE:
            self._first_decrease = None
            # A limit that is not in use need not grow.
            return busiest >= self.limit // 2 and self._set(self._increased())
        in_use = min(self.limit, max(busiest, MIN_LIMIT))
        limit, slowness = self._first_decrease or (in_use, ratio)
        self._first_decrease = limit, max(slowness, ratio)
        if in_use <= max(MIN_LIMIT, limit // 4) and ratio > 0.8 * slowness:
            for best in self._best.values():
                best.seconds *= ratio
            self._first_decrease = None
            return self._set(max(limit, self.limit))
        return self._set(int(in_use * max(0.5, TOLERANCE / ratio)))

    def _increased(self) -> int:
        return self.limit + max(1, math.isqrt(self.limit))

    def _set(self, limit: int) -> bool:
        limit = max(MIN_LIMIT, min(limit, MAX_LIMIT))
        if limit == self.limit:
            return False
        self.limit, self._changed = limit, self._clock()
        self._ratios.clear()
        return True
