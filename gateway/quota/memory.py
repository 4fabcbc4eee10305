"""Counters in this process's memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gateway.quota.counters import DAY_MS, SLOT_MS, SLOTS, Verdict
from gateway.quota.limits import Amounts, Limit, Limits, Window

_SWEEP_AT = 4096


@dataclass(slots=True)
class _Counter:
    """The count of one limit."""

    period: int = 0
    """The day or month that it is about."""
    used: int = 0
    pending: int = 0
    slots: dict[int, int] = field(default_factory=dict)


class MemoryCounters:
    """``clock`` tells Unix time in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._counters: dict[str, _Counter] = {}
        self._reserved_at: dict[str, int] = {}
        """By request id, in milliseconds; of those that are not settled."""
        self._sweep_at = _SWEEP_AT

    async def reserve(self, request_id: str, limits: Limits, amounts: Amounts) -> Verdict:
        return self.reserve_now(request_id, limits, amounts)

    def reserve_now(self, request_id: str, limits: Limits, amounts: Amounts) -> Verdict:
        at = self._now()
        again = request_id in self._reserved_at
        counters: list[_Counter] = []
        used: list[int] = []
        reset: list[float] = []
        refused, longest = -1, -2
        for i, (limit, key) in enumerate(zip(limits.each, limits.keys, strict=True)):
            counter = self._counters.get(key)
            if counter is None:
                counter = self._counters[key] = _Counter()
            _move_to(counter, limit.window, at)
            count = _count(counter)
            amount = limit.amount(amounts)
            if not again and count + amount > limit.maximum:
                wait = _wait(counter, limit, amount, at)
                if wait > longest:
                    refused, longest = i, wait
            counters.append(counter)
            used.append(count)
            reset.append(_reset(counter, limit.window, at) / 1000)
        if refused >= 0:
            return Verdict(
                False, tuple(used), tuple(reset), refused, longest / 1000 if longest >= 0 else None
            )
        if not again:
            for i, (limit, counter) in enumerate(zip(limits.each, counters, strict=True)):
                amount = limit.amount(amounts)
                used[i] += amount
                if limit.window == "minute":
                    slot = at // SLOT_MS
                    if amount:
                        counter.slots[slot] = counter.slots.get(slot, 0) + amount
                        reset[i] = _reset(counter, limit.window, at) / 1000
                else:
                    counter.pending += amount
            if limits.settles:
                self._reserved_at[request_id] = at
            if len(self._counters) > self._sweep_at:
                self._sweep(at)
        return Verdict(True, tuple(used), tuple(reset))

    def settle(self, request_id: str, limits: Limits, reserved: Amounts, used: Amounts) -> None:
        at = self._reserved_at.pop(request_id, None)
        if at is None:
            return
        now = self._now()
        for limit, key in zip(limits.each, limits.keys, strict=True):
            counter = self._counters.get(key)
            if counter is None:
                continue
            _move_to(counter, limit.window, now)
            held, taken = limit.amount(reserved), limit.amount(used)
            if limit.window == "minute":
                slot = at // SLOT_MS
                if slot >= now // SLOT_MS - SLOTS:
                    counter.slots[slot] = counter.slots.get(slot, 0) + taken - held
                    if counter.slots[slot] <= 0:
                        del counter.slots[slot]
            elif limit.window == "now":
                counter.pending = max(0, counter.pending - held)
            elif counter.period == _period(limit.window, at):
                counter.pending = max(0, counter.pending - held)
                counter.used += taken

    async def aclose(self) -> None:
        return None

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _sweep(self, at: int) -> None:
        """Forget counters that count nothing."""
        oldest = at // SLOT_MS - SLOTS
        self._counters = {
            key: counter
            for key, counter in self._counters.items()
            if counter.pending or counter.used or any(slot >= oldest for slot in counter.slots)
        }
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._counters))


def _move_to(counter: _Counter, window: Window, at: int) -> None:
    """Drop what no longer counts at ``at``."""
    if window == "minute":
        oldest = at // SLOT_MS - SLOTS
        if counter.slots and min(counter.slots) < oldest:
            counter.slots = {slot: count for slot, count in counter.slots.items() if slot >= oldest}
    elif window != "now" and counter.period != (period := _period(window, at)):
        counter.period, counter.used, counter.pending = period, 0, 0


def _count(counter: _Counter) -> int:
    return counter.used + counter.pending + sum(counter.slots.values())


def _wait(counter: _Counter, limit: Limit, amount: int, at: int) -> int:
    """Milliseconds until ``amount`` has room, -1 for when requests under way are settled."""
    if limit.window == "minute":
        left, wait = _count(counter), 0
        for slot in sorted(counter.slots):
            left -= counter.slots[slot]
            wait = _leaves(slot) - at
            if left + amount <= limit.maximum:
                break
        return wait
    if limit.window == "now" or counter.used + amount <= limit.maximum:
        return -1
    return _ends(limit.window, at) - at


def _reset(counter: _Counter, window: Window, at: int) -> int:
    if window == "minute":
        newest = max(counter.slots, default=None)
        return 0 if newest is None else _leaves(newest) - at
    return 0 if window == "now" else _ends(window, at) - at


def _leaves(slot: int) -> int:
    return (slot + SLOTS + 1) * SLOT_MS


def _period(window: Window, at: int) -> int:
    if window == "day":
        return at // DAY_MS
    moment = datetime.fromtimestamp(at // 1000, UTC)
    return moment.year * 12 + moment.month - 1


def _ends(window: Window, at: int) -> int:
    if window == "day":
        return (at // DAY_MS + 1) * DAY_MS
    year, month = divmod(_period("month", at) + 1, 12)
    return int(datetime(year, month + 1, 1, tzinfo=UTC).timestamp()) * 1000
