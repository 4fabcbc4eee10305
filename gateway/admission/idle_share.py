"""How much of a backend lines of batches may use, by what requests feel of them.

Free slots are no proof of idle capacity: where all requests share one processor, each line slows all of them. Requests
that began while no line ran say how soon answers of their kind begin (its model, the size of its prompt); where those
beside lines begin later, there are fewer lines. Feedback on a ratio of medians, as in ``adaptive_limit``: additive
increase, multiplicative decrease.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict
from collections.abc import Hashable

SAMPLES = 10
"""Requests beside lines by which it is judged."""
FELT = 1.08
"""A median that is longer by this factor is due to the lines."""
FEWER, MORE = 0.6, 0.1
"""What the share is multiplied by then, and what is added to it otherwise."""
LEAST = 0.01
LEARNED = 5
"""Requests of a kind without lines from which on those with lines are compared to them."""
KEPT = 25
"""Of the latest requests of a kind."""
MAX_KINDS = 100


class IdleShare:
    """One backend's. ``value`` is the part of the allowed utilization that lines may use now."""

    def __init__(self) -> None:
        self.value = 1.0
        self._alone: OrderedDict[Hashable, list[float]] = OrderedDict()
        self._ratios: list[float] = []

    def learn(self, kind: Hashable, seconds: float, *, beside_lines: bool) -> bool:
        """A request's answer began after ``seconds``; lines ran when it was sent, or did not. Whether the share has
        changed."""
        if not beside_lines:
            known = self._alone.setdefault(kind, [])
            self._alone.move_to_end(kind)
            known.append(seconds)
            del known[:-KEPT]
            if len(self._alone) > MAX_KINDS:
                self._alone.popitem(last=False)
            return False
        known = self._alone.get(kind, [])
        if len(known) < LEARNED or (usual := statistics.median(known)) <= 0:
            return False
        self._ratios.append(seconds / usual)
        return len(self._ratios) >= SAMPLES and self._judge(statistics.median(self._ratios))

    def _judge(self, ratio: float) -> bool:
        self._ratios.clear()
        before = self.value
        self.value = max(LEAST, before * FEWER) if ratio > FELT else min(1.0, before + MORE)
        return self.value != before
