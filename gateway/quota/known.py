"""What a process last heard of the counters in the store: where it goes on from while that is away."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.quota.limits import Limits, Window

MOST_KEPT = 100_000
"""Counters. The one that was heard of longest ago goes first."""


class Heard(NamedTuple):
    counts: int
    """What counted: used, and held by requests under way anywhere."""
    used: int
    """Of a day or month, what was used for certain; it only grows."""
    at: float
    """Unix time by the clock of whoever remembers."""


class Known:
    """By the key of the limit."""

    def __init__(self) -> None:
        self._heard: OrderedDict[str, Heard] = OrderedDict()
        self.gateways = 1
        """How many processes share the store."""

    def verdict(self, limits: Limits, counts: Sequence[int], at: float) -> None:
        """What an answer to a reservation told."""
        for key, count in zip(limits.keys, counts, strict=True):
            before = self._heard.get(key)
            self._put(key, Heard(count, before.used if before else 0, at))

    def look(self, key: str, used: int, count: int, at: float) -> None:
        self._put(key, Heard(count, used, at))

    def remember(self, used: Mapping[tuple[str, Window], int], at: float) -> None:
        """At least so much was used, as the ledger says."""
        for (key, _), amount in used.items():
            if key not in self._heard:
                self._put(key, Heard(amount, 0, at))

    def get(self, key: str) -> Heard | None:
        return self._heard.get(key)

    def used(self) -> list[tuple[str, Heard]]:
        """All by the day or month of which something was used for certain."""
        return [(key, heard) for key, heard in self._heard.items() if heard.used]

    def _put(self, key: str, heard: Heard) -> None:
        self._heard[key] = heard
        self._heard.move_to_end(key)
        if len(self._heard) > MOST_KEPT:
            self._heard.popitem(last=False)
