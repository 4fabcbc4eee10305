"""The count of one limit over its window, in memory."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.quota.counters import DAY_MS, DEBT_MINUTES, SLOT_MS, SLOTS
from gateway.quota.limits import Window

NEVER = 2**63


@dataclass(frozen=True, slots=True)
class Moment:
    """A day and its month, computed once a day: when they begin and end, in milliseconds of Unix time."""

    day_begins: int
    day_ends: int
    month_begins: int
    month_ends: int


def leaves(slot: int) -> int:
    return (slot + SLOTS + 1) * SLOT_MS


class WindowCounter:
    """The count of one limit. All times are milliseconds of Unix time."""

    __slots__ = ("begins", "count", "ends", "pending", "slots", "told", "until", "window")

    def __init__(self, window: Window) -> None:
        self.window = window
        self.begins = 0
        """Of a day or month: when it did."""
        self.ends = 0
        """When none of it counts any more, if nothing is added; in the past where only requests in flight count."""
        self.until = 0
        """When something of it may count no more."""
        self.count = 0
        """All that counts: usage, and reservations of requests in flight."""
        self.pending = 0
        """The latter; a count of requests is final, and never pending."""
        self.told = 0
        """Of the count: what the ledger had beyond it, which other processes may count, too."""
        self.slots: dict[int, int] = {}
        """Of a minute's."""

    def copied(self) -> WindowCounter:
        copy = WindowCounter(self.window)
        copy.begins, copy.ends, copy.until = self.begins, self.ends, self.until
        copy.count, copy.pending, copy.told = self.count, self.pending, self.told
        copy.slots = dict(self.slots)
        return copy

    def move_to(self, at: int, today: Moment) -> None:
        """Drop what no longer counts. Needless before ``until``."""
        if self.window == "minute":
            slot = at // SLOT_MS
            self.until = (slot + 1) * SLOT_MS
            self._slide(slot - SLOTS)
        elif self.window == "now":
            self.until = NEVER
        else:
            self.until = today.day_ends
            begins, ends = (
                (today.day_begins, today.day_ends)
                if self.window == "day"
                else (today.month_begins, today.month_ends)
            )
            if self.begins != begins:
                # A new day or month starts from zero.
                self.begins, self.ends = begins, ends
                self.count = self.pending = self.told = 0

    def _slide(self, oldest: int) -> None:
        slots = self.slots
        for slot in [slot for slot in slots if slot < oldest]:
            self.count -= slots.pop(slot)
        if not slots:
            self.count = self.ends = 0

    def add(self, slot: int, amount: int) -> None:
        self.count += amount
        left = self.slots.get(slot, 0) + amount
        if left > 0:
            self.slots[slot] = left
            if (ends := leaves(slot)) > self.ends:
                self.ends = ends
        else:
            self.count -= left
            self.slots.pop(slot, None)
            self.ends = leaves(max(self.slots)) if self.slots else 0

    def charge(self, slot: int, amount: int, maximum: int) -> None:
        """Add what was used beyond the reservation; what exceeds ``maximum`` is a debt of the minutes that follow."""
        owed = min(amount, max(0, self.count + amount - maximum))
        if amount > owed:
            self.add(slot, amount - owed)
        for minute in range(1, DEBT_MINUTES + 1):
            if owed <= 0:
                return
            then = slot + minute * (SLOTS + 1)
            part = owed if minute == DEBT_MINUTES else min(owed, maximum - self.slots.get(then, 0))
            if part > 0:
                self.add(then, part)
                owed -= part


def moment_of(at: int) -> Moment:
    now = datetime.fromtimestamp(at // 1000, UTC)
    begins = datetime(now.year, now.month, 1, tzinfo=UTC)
    year, month = divmod(now.year * 12 + now.month, 12)
    ends = datetime(year, month + 1, 1, tzinfo=UTC)
    day = at // DAY_MS
    return Moment(
        *(day * DAY_MS, (day + 1) * DAY_MS),
        *(int(begins.timestamp()) * 1000, int(ends.timestamp()) * 1000),
    )
