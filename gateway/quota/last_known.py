"""The last known values of the counters in the store: what a process continues from while the store is down."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gateway.quota.limits import Limits, Window

MOST_KEPT = 100_000
"""Counters. The least recently updated one goes first."""
_NEARLY_ALL = 0.95
"""Of what is settled; the rest may be on its way to the ledger."""


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

    def add(self, spent: Iterable[tuple[str, int]], at: float) -> None:
        """Add settled usage of a day or month, of which the store has not told."""
        for key, amount in spent:
            before = self._snapshots.get(key)
            if before is None or not _same_period(key, before.at, at):
                before = Snapshot(0, 0, at)
            used = before.used + amount
            self._put(key, Snapshot(max(before.counts, used), used, at))

    def raise_to(self, used: Mapping[str, int], at: float, now: float | None = None) -> None:
        """To what was used at least, until ``at``. Where it is later ``now``, what is of a past day or month is not
        counted."""
        for key, amount in used.items():
            if now is not None and not _same_period(key, at, now):
                continue
            before = self._snapshots.get(key)
            known = before.used if before is not None and _same_period(key, before.at, at) else 0
            self.add([(key, amount - known)] if amount > known else [], at)

    def is_within(self, used: Mapping[str, int], at: float) -> bool:
        """Whether a ledger that has recorded ``used`` has it from all who share the store."""
        return all(
            used[key] >= _NEARLY_ALL * snapshot.used
            for key, snapshot in self.used()
            if key in used and _same_period(key, snapshot.at, at)
        )

    def get(self, key: str) -> Snapshot | None:
        return self._snapshots.get(key)

    def used(self) -> list[tuple[str, Snapshot]]:
        """All limits by the day or month with settled usage."""
        return [(key, snapshot) for key, snapshot in self._snapshots.items() if snapshot.used]

    def calendar(self) -> list[tuple[str, Snapshot]]:
        """All limits by the day or month, used or only reserved."""
        return [(key, one) for key, one in self._snapshots.items() if key.endswith((":day", ":month"))]

    def _put(self, key: str, snapshot: Snapshot) -> None:
        self._snapshots[key] = snapshot
        self._snapshots.move_to_end(key)
        if len(self._snapshots) > MOST_KEPT:
            self._snapshots.popitem(last=False)


def _same_period(key: str, one: float, other: float) -> bool:
    """Of a limit by the day or month, in UTC."""
    fields = 2 if key.endswith(":month") else 3
    return time.gmtime(one)[:fields] == time.gmtime(other)[:fields]
