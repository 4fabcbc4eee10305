"""The last known values of the counters in the store: what a process continues from while the store is down."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.quota.limits import Limits, Window

MOST_KEPT = 100_000
"""Counters. The least recently updated one goes first."""


class Snapshot(NamedTuple):
    counts: int
    """What counted: usage, and reservations of requests in flight anywhere."""
    used: int
    """Of a day or month, settled usage; it only grows."""
    at: float
    """Unix time, by this process's clock."""


class LastKnown:
    """By the key of the limit."""

    def __init__(self) -> None:
        self._snapshots: OrderedDict[str, Snapshot] = OrderedDict()
        self.gateways = 1
        """How many processes share the store."""

    def update(self, limits: Limits, counts: Sequence[int], at: float) -> None:
        """Update from the answer to a reservation."""
        for key, count in zip(limits.keys, counts, strict=True):
            before = self._snapshots.get(key)
            self._put(key, Snapshot(count, before.used if before else 0, at))

    def put(self, key: str, used: int, count: int, at: float) -> None:
        self._put(key, Snapshot(count, used, at))

    def remember(self, used: Mapping[tuple[str, Window], int], at: float) -> None:
        """Fill in usage from the ledger, where nothing better is known."""
        for (key, _), amount in used.items():
            if key not in self._snapshots:
                self._put(key, Snapshot(amount, amount, at))

    def get(self, key: str) -> Snapshot | None:
        return self._snapshots.get(key)

    def used(self) -> list[tuple[str, Snapshot]]:
        """All limits by the day or month with settled usage."""
        return [(key, snapshot) for key, snapshot in self._snapshots.items() if snapshot.used]

    def _put(self, key: str, snapshot: Snapshot) -> None:
        self._snapshots[key] = snapshot
        self._snapshots.move_to_end(key)
        if len(self._snapshots) > MOST_KEPT:
            self._snapshots.popitem(last=False)
