"""Counters in this process's memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.quota.counters import DAY_MS, SLOT_MS, SLOTS, Verdict
from gateway.quota.limits import Amounts, Limit, Limits, Window

_SWEEP_AT = 4096


class _Counter:
    """The count of one limit."""

    __slots__ = ("count", "newest", "pending", "period", "slots")

    def __init__(self) -> None:
        self.period = -1
        """The slot, day or month that it was last looked at in."""
        self.count = 0
        """All that counts: what was used, and what is held by requests under way."""
        self.pending = 0
        """The latter, where it is kept apart."""
        self.slots: dict[int, int] = {}
        self.newest = -1
        """Of the slots that count something."""

    def slide_to(self, slot: int) -> None:
        """Drop the slots that no longer count."""
        self.period = slot
        if self.slots:
            self.slots = {one: count for one, count in self.slots.items() if one >= slot - SLOTS}
            self.count = sum(self.slots.values())
            self.newest = max(self.slots, default=-1)

    def turn_to(self, period: int) -> None:
        """A new day or month begins with nothing."""
        self.period, self.count, self.pending = period, 0, 0

    def add(self, slot: int, amount: int) -> None:
        self.count += amount
        left = self.slots.get(slot, 0) + amount
        if left > 0:
            self.slots[slot] = left
            self.newest = max(self.newest, slot)
        else:
            self.count -= left
            self.slots.pop(slot, None)
            self.newest = max(self.slots, default=-1)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A day, and what follows from it: worked out once a day."""

    day: int
    month: int
    day_ends: int
    month_ends: int
    """Milliseconds of Unix time."""


class MemoryCounters:
    """``clock`` tells Unix time in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._counters: dict[str, _Counter] = {}
        self._reserved_at: dict[str, int] = {}
        """By request id, in milliseconds; of those that are not settled."""
        self._sweep_at = _SWEEP_AT
        self._today = _moment(0)

    async def reserve(self, request_id: str, limits: Limits, amounts: Amounts) -> Verdict:
        return self.reserve_now(request_id, limits, amounts)

    def reserve_now(self, request_id: str, limits: Limits, amounts: Amounts) -> Verdict:
        at = int(self._clock() * 1000)
        again = request_id in self._reserved_at
        counters: list[_Counter] = []
        used: list[int] = []
        refused, longest = -1, -2
        known = self._counters
        for i, (window, key, place, maximum) in enumerate(limits.rules):
            counter = known.get(key)
            if counter is None:
                counter = known[key] = _Counter()
            self._move_to(counter, window, at)
            count = counter.count
            if count + amounts[place] > maximum and not again:
                wait = self._wait(counter, limits.each[i], amounts[place], at)
                if wait > longest:
                    refused, longest = i, wait
            counters.append(counter)
            used.append(count)
        if refused < 0 and not again:
            slot = at // SLOT_MS
            for i, (window, _, place, _) in enumerate(limits.rules):
                amount = amounts[place]
                if amount:
                    used[i] += amount
                    if window == "minute":
                        counters[i].add(slot, amount)
                    else:
                        counters[i].count += amount
                        counters[i].pending += amount
            if limits.settles:
                self._reserved_at[request_id] = at
            if len(known) > self._sweep_at:
                self._sweep(at)
        reset = tuple(
            [
                self._reset(counter, rule[0], at) / 1000
                for counter, rule in zip(counters, limits.rules, strict=True)
            ]
        )
        if refused >= 0:
            return Verdict(False, tuple(used), reset, refused, longest / 1000 if longest >= 0 else None)
        return Verdict(True, tuple(used), reset)

    def settle(self, request_id: str, limits: Limits, reserved: Amounts, used: Amounts) -> None:
        at = self._reserved_at.pop(request_id, None)
        if at is None:
            return
        now = int(self._clock() * 1000)
        for window, key, place, _ in limits.rules:
            held, taken = reserved[place], used[place]
            if window == "minute" and held == taken:
                continue
            counter = self._counters.get(key)
            if counter is None:
                continue
            self._move_to(counter, window, now)
            if window == "minute":
                slot = at // SLOT_MS
                if slot >= now // SLOT_MS - SLOTS:
                    counter.add(slot, taken - held)
                continue
            if window != "now" and counter.period != self._period(window, at):
                continue
            held = min(held, counter.pending)
            counter.pending -= held
            counter.count += (0 if window == "now" else taken) - held

    async def aclose(self) -> None:
        return None

    def _move_to(self, counter: _Counter, window: Window, at: int) -> None:
        """Drop what no longer counts at ``at``."""
        if window == "minute":
            if counter.period != (slot := at // SLOT_MS):
                counter.slide_to(slot)
        elif window != "now" and counter.period != (period := self._period(window, at)):
            counter.turn_to(period)

    def _period(self, window: Window, at: int) -> int:
        today = self._on(at)
        return today.day if window == "day" else today.month

    def _on(self, at: int) -> _Moment:
        if self._today.day != at // DAY_MS:
            self._today = _moment(at)
        return self._today

    def _wait(self, counter: _Counter, limit: Limit, amount: int, at: int) -> int:
        """Milliseconds until ``amount`` has room, -1 for when requests under way are settled."""
        if limit.window == "minute":
            left, wait = counter.count, 0
            for slot in sorted(counter.slots):
                left -= counter.slots[slot]
                wait = _leaves(slot) - at
                if left + amount <= limit.maximum:
                    break
            return wait
        if limit.window == "now" or counter.count - counter.pending + amount <= limit.maximum:
            return -1
        return self._ends(limit.window, at) - at

    def _ends(self, window: Window, at: int) -> int:
        today = self._on(at)
        return today.day_ends if window == "day" else today.month_ends

    def _reset(self, counter: _Counter, window: Window, at: int) -> int:
        if window == "minute":
            return 0 if counter.newest < 0 else _leaves(counter.newest) - at
        return 0 if window == "now" else self._ends(window, at) - at

    def _sweep(self, at: int) -> None:
        """Forget counters that count nothing."""
        oldest = at // SLOT_MS - SLOTS
        self._counters = {
            key: counter
            for key, counter in self._counters.items()
            if (counter.newest >= oldest if counter.slots else counter.count)
        }
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._counters))


def _leaves(slot: int) -> int:
    return (slot + SLOTS + 1) * SLOT_MS


def _moment(at: int) -> _Moment:
    moment = datetime.fromtimestamp(at // 1000, UTC)
    year, following = divmod(moment.year * 12 + moment.month, 12)
    ends = int(datetime(year, following + 1, 1, tzinfo=UTC).timestamp()) * 1000
    day = at // DAY_MS
    return _Moment(day, moment.year * 12 + moment.month - 1, (day + 1) * DAY_MS, ends)
