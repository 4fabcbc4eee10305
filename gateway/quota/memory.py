"""Counters in this process's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from gateway.quota.clock import SteadyClock
from gateway.quota.counters import DAY_MS, DEBT_MINUTES, SLOT_MS, SLOTS, Elastic, Verdict
from gateway.quota.limits import Amounts, Limits, Window

_SWEEP_AT = 4096
NOTHING = Amounts(0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A day and its month, which are worked out once a day: when they begin and end, in milliseconds of Unix time."""

    day: int
    """Since 1970."""
    month: int
    """Since the year 0."""
    day_ends: int
    month_begins: int
    month_ends: int

    def begins(self, window: Window) -> int:
        return self.day_ends - DAY_MS if window == "day" else self.month_begins


def _leaves(slot: int) -> int:
    return (slot + SLOTS + 1) * SLOT_MS


class _Counter:
    """The count of one limit."""

    __slots__ = ("count", "newest", "pending", "period", "slots")

    def __init__(self) -> None:
        self.period = -1
        """The slot, day or month that it was last looked at in."""
        self.count = 0
        """All that counts: what was used, and what is held by requests under way."""
        self.pending = 0
        """The latter; a count of requests is final, and none of it is."""
        self.slots: dict[int, int] = {}
        self.newest = -1
        """Of the slots that count something."""

    def move_to(self, window: Window, slot: int, today: _Moment) -> None:
        """Drop what no longer counts in this slot, on this day."""
        if window == "minute":
            if self.period != slot:
                self.period = slot
                self._slide(slot - SLOTS)
        elif window != "now" and self.period != (period := today.day if window == "day" else today.month):
            # A new day or month begins with nothing.
            self.period, self.count, self.pending = period, 0, 0

    def resets(self, window: Window, today: _Moment, at: int) -> int:
        """Milliseconds until nothing of it counts any more, if nothing is added."""
        if window == "minute":
            return 0 if self.newest < 0 else _leaves(self.newest) - at
        if window == "now":
            return 0
        return (today.day_ends if window == "day" else today.month_ends) - at

    def _slide(self, oldest: int) -> None:
        slots = self.slots
        for slot in [slot for slot in slots if slot < oldest]:
            self.count -= slots.pop(slot)
        if not slots:
            self.count, self.newest = 0, -1

    def add(self, slot: int, amount: int) -> None:
        self.count += amount
        left = self.slots.get(slot, 0) + amount
        if left > 0:
            self.slots[slot] = left
            if slot > self.newest:
                self.newest = slot
        else:
            self.count -= left
            self.slots.pop(slot, None)
            self.newest = max(self.slots, default=-1)

    def charge(self, slot: int, amount: int, maximum: int) -> None:
        """Add what was used beyond the reservation: what goes over ``maximum`` is left to the minutes that follow."""
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


class _Held(NamedTuple):
    """What a request under way holds, and since when (milliseconds)."""

    at: int
    amounts: Amounts


class MemoryCounters:
    """``clock`` tells Unix time in seconds; the default is steady."""

    def __init__(self, *, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or SteadyClock()
        self._counters: dict[str, _Counter] = {}
        self._held: dict[str, _Held] = {}
        """By request id; of those that are not settled."""
        self._sweep_at = _SWEEP_AT
        self._today = _moment(0)

    async def reserve(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: Elastic | None = None
    ) -> Verdict:
        return self.reserve_now(request_id, limits, amounts, elastic)

    async def extend(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: Elastic | None = None
    ) -> Verdict:
        held = self._held.pop(request_id, None)
        if held is None:
            return Verdict(False)
        # The request itself has been counted, and has its places.
        before = _Held(held.at, held.amounts._replace(requests=0, answers=0))
        now = int(self._clock() * 1000)
        self._give_back(before, limits, NOTHING, now)
        more = amounts._replace(requests=0, answers=0)
        verdict = self.reserve_now(request_id, limits, more, elastic)
        if verdict.granted is None:
            self._held[request_id] = held
            self._take_back(before, limits, now)
            return verdict
        granted = verdict.granted._replace(requests=held.amounts.requests, answers=held.amounts.answers)
        self._held[request_id] = _Held(now, granted)
        return verdict._replace(granted=granted)

    def reserve_now(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: Elastic | None = None
    ) -> Verdict:
        at = int(self._clock() * 1000)
        slot, today = at // SLOT_MS, self._on(at)
        again = self._held.get(request_id)
        share = 1 if elastic is None else elastic.share
        counters: list[_Counter] = []
        used: list[int] = []
        granted = amounts
        refused, longest = -1, -2
        known, rules = self._counters, limits.rules
        for i, (window, key, place, maximum) in enumerate(rules):
            counter = known.get(key)
            if counter is None:
                counter = known[key] = _Counter()
            if window != "minute" or counter.period != slot:
                counter.move_to(window, slot, today)
            count = counter.count
            counters.append(counter)
            used.append(count)
            most = amounts[place]
            free = maximum - count
            if again is not None or not most or most * share <= free:
                continue
            if elastic is None:
                take, need = min(most, free), most
            else:
                take, need = self._stretch(elastic, place, most, free)
                coming = min(counter.pending, count)
                if window != "now" and free < (usual := elastic.usual[place]) <= free + coming:
                    need = min(usual, most)
            if take < need:
                wait = self._wait(counter, window, maximum, need, at)
                if wait > longest:
                    refused, longest = i, wait
            if take < granted[place]:
                granted = Amounts(*(*granted[:place], take, *granted[place + 1 :]))
        if again is not None:
            granted = again.amounts
        elif refused < 0:
            for i, (window, _, place, _) in enumerate(rules):
                if amount := granted[place]:
                    used[i] += amount
                    counter = counters[i]
                    if window == "minute":
                        counter.add(slot, amount)
                    else:
                        counter.count += amount
                    if place or window == "now":
                        counter.pending += amount
            if limits.settles:
                self._held[request_id] = _Held(at, granted)
            if len(known) > self._sweep_at:
                self._sweep(at)
        reset = tuple([counters[i].resets(rule[0], today, at) / 1000 for i, rule in enumerate(rules)])
        if refused >= 0:
            return Verdict(False, tuple(used), reset, refused, longest / 1000 if longest >= 0 else None)
        return Verdict(True, tuple(used), reset, -1, None, granted)

    def settle(self, request_id: str, limits: Limits, used: Amounts) -> None:
        held = self._held.pop(request_id, None)
        if held is not None:
            self._give_back(held, limits, used, int(self._clock() * 1000))

    def _give_back(self, held: _Held, limits: Limits, used: Amounts, now: int) -> None:
        """Put ``used`` in the place of ``held``."""
        at, amounts = held
        slot, today, known = now // SLOT_MS, self._on(now), self._counters
        for window, key, place, maximum in limits.rules:
            if window == "minute" and not place:
                continue
            counter = known.get(key)
            if counter is None:
                continue
            amount, taken = amounts[place], used[place]
            if window != "minute" or counter.period != slot:
                counter.move_to(window, slot, today)
            if window == "minute":
                counter.pending -= min(amount, counter.pending)
                live = self._is_live(at, now)
                if taken > amount:
                    counter.charge((at if live else now) // SLOT_MS, taken - amount, maximum)
                elif live and taken < amount:
                    counter.add(at // SLOT_MS, taken - amount)
                continue
            if window != "now" and at < today.begins(window):
                continue
            amount = min(amount, counter.pending)
            counter.pending -= amount
            counter.count += (0 if window == "now" else taken) - amount

    def _take_back(self, held: _Held, limits: Limits, now: int) -> None:
        today = self._on(now)
        for window, key, place, _ in limits.rules:
            amount, counter = held.amounts[place], self._counters[key]
            if window == "minute":
                counter.pending += amount
                if amount and self._is_live(held.at, now):
                    counter.add(held.at // SLOT_MS, amount)
            elif window == "now" or held.at >= today.begins(window):
                counter.count += amount
                counter.pending += amount

    def _is_live(self, at: int, now: int) -> bool:
        """Whether what was reserved at ``at`` counts in a minute's window."""
        return at // SLOT_MS >= now // SLOT_MS - SLOTS

    def _stretch(self, elastic: Elastic, place: int, most: int, free: int) -> tuple[int, int]:
        """What is taken of ``free``, and what it must be at least."""
        take = min(most, free)
        if elastic.share > 1:
            take = min(take, max(elastic.usual[place], free // elastic.share))
        return take, min(elastic.least[place], most)

    def begin(self, key: str, window: Window, count: int, at: float) -> None:
        """A limit starts with ``count``, which was true at ``at`` (Unix time), as far as that counts now."""
        counter = self._counters.setdefault(key, _Counter())
        now, then = int(self._clock() * 1000), int(at * 1000)
        today = self._on(now)
        counter.move_to(window, now // SLOT_MS, today)
        if window == "minute":
            if self._is_live(then, now):
                counter.add(min(then, now) // SLOT_MS, count)
        elif window != "now" and then >= today.begins(window):
            counter.count += count

    def remember(self, key: str, window: Window, used: int) -> None:
        """At least ``used`` was used of a limit by the day or month, requests under way aside."""
        counter = self._counters.setdefault(key, _Counter())
        now = int(self._clock() * 1000)
        counter.move_to(window, now // SLOT_MS, self._on(now))
        counter.count = max(counter.count, used + counter.pending)

    async def aclose(self) -> None:
        return None

    def _on(self, at: int) -> _Moment:
        if self._today.day != at // DAY_MS:
            self._today = _moment(at)
        return self._today

    def _wait(self, counter: _Counter, window: Window, maximum: int, amount: int, at: int) -> int:
        """Milliseconds until ``amount`` has room, -1 for when requests under way are settled."""
        if window == "now" or counter.count - min(counter.pending, counter.count) + amount <= maximum:
            return -1
        if window == "minute":
            left, wait = counter.count, 0
            for slot in sorted(counter.slots):
                left -= counter.slots[slot]
                wait = _leaves(slot) - at
                if left + amount <= maximum:
                    break
            return wait
        return counter.resets(window, self._on(at), at)

    def _sweep(self, at: int) -> None:
        """Forget counters that count nothing."""
        oldest = at // SLOT_MS - SLOTS
        self._counters = {
            key: counter
            for key, counter in self._counters.items()
            if (counter.newest >= oldest if counter.slots else counter.count)
        }
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._counters))


def _moment(at: int) -> _Moment:
    now = datetime.fromtimestamp(at // 1000, UTC)
    begins = datetime(now.year, now.month, 1, tzinfo=UTC)
    year, month = divmod(now.year * 12 + now.month, 12)
    ends = datetime(year, month + 1, 1, tzinfo=UTC)
    day = at // DAY_MS
    return _Moment(
        *(day, now.year * 12 + now.month - 1, (day + 1) * DAY_MS),
        *(int(begins.timestamp()) * 1000, int(ends.timestamp()) * 1000),
    )
