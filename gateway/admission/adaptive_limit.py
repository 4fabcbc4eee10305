"""An adaptive concurrency limit, from latency, for a backend whose limit the policy does not state.

As in TCP Vegas, and Envoy's adaptive concurrency (https://www.envoyproxy.io/docs/envoy/latest/configuration/http/
http_filters/adaptive_concurrency_filter): where answers begin much later than at best, requests queue at the backend,
and that queue is better kept here, where it is shared fairly. Unlike there, nothing is limited without evidence, and
no traffic is held back to measure the minimum: most hosted models take whatever comes.

Each kind of request (its model, whether it streams, its effort, the size of its prompt) has a minimum of its own. If
fewer requests at once make it no faster, the load is not ours, and the present latency becomes the minimum.

A queue delays everybody, the fastest too: as in CoDel (RFC 8289), which judges by the least delay of an interval, it is
the lower quartile that counts, and the tenant that is delayed least. One whose answers are slow by themselves, such as
a reasoning model's, proves nothing while those of another begin as soon as ever.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import chain

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
FEWEST = 3
"""Samples of one tenant by which it is judged by itself."""


class _Best:
    """The minimum latency of one kind of request: a low quantile, in seconds."""

    __slots__ = ("at", "known", "seconds")

    def __init__(self, seconds: float, at: float) -> None:
        self.seconds = seconds
        self.at = at
        self.known = False
        """It is from a time without a queue: what was first seen in one would say ever after that there is none."""

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
        self._ratios: dict[str, list[float]] = {}
        """By tenant."""
        self._count = 0
        """Of these ratios."""
        self._unknown = 0
        """Samples beside them of kinds that are not known."""
        self._kinds: set[Hashable] = set()
        """Of all these samples."""
        self._busiest = 0
        self._first_decrease: tuple[int, float] | None = None
        """Since the limit began to fall: what it was, and the largest multiple since."""

    def learn(
        self,
        kind: Hashable,
        seconds: float,
        sent: float,
        in_flight: int,
        tenant: str = "",
        *,
        quick: bool = False,
    ) -> bool:
        """A request dispatched at ``sent`` began to be answered after ``seconds``; ``quick`` where that is too soon for
        any queue. Whether the limit has changed."""
        now = self._last_answer = self._clock()
        seconds = max(seconds, 1e-6)
        best = self._best.get(kind)
        if best is None:
            best = self._best[kind] = _Best(seconds, now)
            if len(self._best) > MAX_KINDS:
                self._best.popitem(last=False)
        self._best.move_to_end(kind)
        ratio = best.add(seconds, now)
        if in_flight > self._busiest:
            self._busiest = in_flight
        if sent < self._changed:
            return False
        if quick:
            best.known = True
        if best.known:
            self._ratios.setdefault(tenant, []).append(ratio)
            self._count += 1
        else:
            self._unknown += 1
        self._kinds.add(kind)
        if self._count < SAMPLES and self._unknown < SAMPLES:
            return False
        enough = max(SAMPLES, min(self._busiest, self.limit) // 2)
        if self._count >= enough:
            return self._judge(self._least_delayed())
        if self._unknown >= enough and not self._count:  # with nothing to compare it to
            self._trust()
        return False

    def grow_in_silence(self) -> bool:
        """For when requests wait and none is answered. Returns whether the limit has changed."""
        now = self._clock()
        if self.limit >= MAX_LIMIT or now - max(self._last_answer, self._changed) < SILENCE:
            return False
        return self._set(self._increased())

    def _least_delayed(self) -> float:
        tenants = [ratios for ratios in self._ratios.values() if len(ratios) >= FEWEST]
        return min(_lower_quartile(ratios) for ratios in tenants or [[*chain(*self._ratios.values())]])

    def _judge(self, ratio: float) -> bool:
        if ratio <= TOLERANCE:
            self._trust()
        kinds = self._kinds
        self._begin_anew()
        busiest, self._busiest = self._busiest, 0
        if ratio <= TOLERANCE:
            self._first_decrease = None
            # A limit that is not in use need not grow.
            return busiest >= self.limit // 2 and self._set(self._increased())
        in_use = min(self.limit, max(busiest, MIN_LIMIT))
        limit, slowness = self._first_decrease or (in_use, ratio)
        self._first_decrease = limit, max(slowness, ratio)
        if in_use <= max(MIN_LIMIT, limit // 4) and ratio > 0.8 * slowness:
            for kind in kinds & self._best.keys():
                self._best[kind].seconds *= ratio
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
        self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        self._ratios, self._kinds = {}, set()
        self._count = self._unknown = 0

    def _trust(self) -> None:
        for kind in self._kinds & self._best.keys():
            self._best[kind].known = True


def _lower_quartile(ratios: list[float]) -> float:
    return sorted(ratios)[len(ratios) // 4]
