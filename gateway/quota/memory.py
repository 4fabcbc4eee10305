"""Counters in this process's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from gateway.quota.clock import SteadyClock
from gateway.quota.counters import (
    DAY_MS,
    DEBT_MINUTES,
    SLOT_MS,
    SLOTS,
    Elastic,
    ElasticRequest,
    QuotaDecision,
)
from gateway.quota.limits import Amounts, Limits, Rule, Window

_SWEEP_AT = 4096
NOTHING = Amounts(0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A day and its month, computed once a day: when they begin and end, in milliseconds of Unix time."""

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

    __slots__ = ("count", "newest", "pending", "period", "slots", "told")

    def __init__(self) -> None:
        self.period = -1
        """The slot, day or month of its last update."""
        self.count = 0
        """All that counts: usage, and reservations of requests in flight."""
        self.pending = 0
        """The latter; a count of requests is final, and never pending."""
        self.told = 0
        """Of the count: what the ledger had beyond it, which other processes may count, too."""
        self.slots: dict[int, int] = {}
        self.newest = -1
        """The newest slot with a count."""

    def move_to(self, window: Window, slot: int, today: _Moment) -> None:
        """Drop what no longer counts at this slot and day."""
        if window == "minute":
            if self.period != slot:
                self.period = slot
                self._slide(slot - SLOTS)
        elif window != "now" and self.period != (period := today.day if window == "day" else today.month):
            # A new day or month starts from zero.
            self.period, self.count, self.pending, self.told = period, 0, 0, 0

    def resets(self, window: Window, today: _Moment, at: int) -> int:
        """Milliseconds until none of it counts any more, if nothing is added."""
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


class _Held(NamedTuple):
    """What a request in flight has reserved, and when (milliseconds)."""

    at: int
    amounts: Amounts


class MemoryCounters:
    """``clock`` gives Unix time in seconds; the default is a ``SteadyClock``."""

    def __init__(self, *, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or SteadyClock()
        self._counters: dict[str, _Counter] = {}
        self._held: dict[str, _Held] = {}
        """By request id, until settled."""
        self._sweep_at = _SWEEP_AT
        self._today = _moment(0)

    async def reserve(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        return self.reserve_now(request_id, limits, amounts, elastic)

    async def extend(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        held = self._held.pop(request_id, None)
        if held is None:
            return QuotaDecision(False)
        # The request itself is counted already, and has its slots.
        before = _Held(held.at, held.amounts._replace(requests=0, answers=0))
        now = int(self._clock() * 1000)
        self._replace(before, limits, NOTHING, now)
        more = amounts._replace(requests=0, answers=0)
        decision = self.reserve_now(request_id, limits, more, elastic)
        if decision.granted is None:
            self._held[request_id] = held
            self._restore(before, limits, now)
            return decision
        granted = decision.granted._replace(requests=held.amounts.requests, answers=held.amounts.answers)
        self._held[request_id] = _Held(now, granted)
        return decision._replace(granted=granted)

    def reserve_now(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        at = int(self._clock() * 1000)
        slot, today = at // SLOT_MS, self._on(at)
        again = self._held.get(request_id)
        divisor = 1 if elastic is None else elastic.divisor
        fits = True
        counters: list[_Counter] = []
        known, rules = self._counters, limits.rules
        for window, key, column, maximum in rules:
            counter = known.get(key)
            if counter is None:
                counter = known[key] = _Counter()
            if counter.period != slot:
                counter.move_to(window, slot, today)
            counters.append(counter)
            if (most := amounts[column]) and most * divisor > maximum - counter.count:
                fits = False
        granted = amounts
        refused, wait = -1, None
        if again is not None:
            granted = again.amounts
        elif not fits:
            granted, refused, wait = self._divided(counters, rules, amounts, elastic, at)
        if again is None and refused < 0:
            for counter, (window, _, column, _) in zip(counters, rules, strict=True):
                if amount := granted[column]:
                    if window == "minute":
                        counter.add(slot, amount)
                    else:
                        counter.count += amount
                    if column or window == "now":
                        counter.pending += amount
            if limits.settles:
                self._held[request_id] = _Held(at, granted)
            if len(known) > self._sweep_at:
                self._sweep(at)
        used = tuple([counter.count for counter in counters])
        resets = tuple(
            [counter.resets(rule[0], today, at) / 1000 for counter, rule in zip(counters, rules, strict=True)]
        )
        if refused >= 0:
            return QuotaDecision(False, used, resets, refused, wait)
        return QuotaDecision(True, used, resets, -1, None, granted)

    def _divided(
        self,
        counters: Sequence[_Counter],
        rules: Sequence[Rule],
        amounts: Amounts,
        elastic: ElasticRequest | None,
        at: int,
    ) -> tuple[Amounts, int, float | None]:
        """What is granted where not all limits have capacity for all that is asked for; the index of the limit that
        refuses, or -1, and the wait that it tells.
        """
        divisor = 1 if elastic is None else elastic.divisor
        granted = amounts
        refused, longest = -1, -2
        for i, (counter, (window, _, column, maximum)) in enumerate(zip(counters, rules, strict=True)):
            most, count = amounts[column], counter.count
            free = maximum - count
            if not most or most * divisor <= free:
                continue
            if elastic is None:
                take, need = min(most, free), most
            else:
                bounds = elastic.elastic
                take, need = self._take_and_need(bounds, column, most, free)
                releasable = min(counter.pending, count)
                if window != "now" and free < (usual := bounds.usual[column]) <= free + releasable:
                    need = min(usual, most)
            if take < need:
                wait = self._wait(counter, window, maximum, need, at)
                if wait > longest:
                    refused, longest = i, wait
            if take < granted[column]:
                granted = Amounts(*(*granted[:column], take, *granted[column + 1 :]))
        return granted, refused, longest / 1000 if longest >= 0 else None

    def settle(self, request_id: str, limits: Limits, used: Amounts) -> None:
        held = self._held.pop(request_id, None)
        if held is not None:
            self._replace(held, limits, used, int(self._clock() * 1000))

    def _replace(self, held: _Held, limits: Limits, used: Amounts, now: int) -> None:
        """Replace ``held`` by ``used``."""
        at, amounts = held
        slot, today, known = now // SLOT_MS, self._on(now), self._counters
        then = at // SLOT_MS
        live = then >= slot - SLOTS
        for window, key, column, maximum in limits.settled_rules:
            counter = known.get(key)
            if counter is None:
                continue
            amount, taken = amounts[column], used[column]
            if window == "minute":
                if counter.period != slot:
                    counter.move_to(window, slot, today)
                pending = counter.pending
                counter.pending = pending - amount if amount < pending else 0
                if taken > amount:
                    counter.charge(then if live else slot, taken - amount, maximum)
                elif live and taken < amount:
                    counter.add(then, taken - amount)
                continue
            counter.move_to(window, slot, today)
            if window == "now":
                taken = 0
            elif at < today.begins(window):
                continue
            amount = min(amount, counter.pending)
            counter.pending -= amount
            counter.count += taken - amount

    def _restore(self, held: _Held, limits: Limits, now: int) -> None:
        today = self._on(now)
        for window, key, column, _ in limits.rules:
            amount, counter = held.amounts[column], self._counters[key]
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

    def _take_and_need(self, elastic: Elastic, column: int, most: int, free: int) -> tuple[int, int]:
        """What to take of ``free``, and the least that is enough."""
        take = min(most, free)
        if elastic.divisor > 1:
            take = min(take, max(elastic.usual[column], free // elastic.divisor))
        return take, min(elastic.least[column], most)

    def begin(self, key: str, window: Window, count: int, at: float) -> None:
        """Start a limit with ``count``, as known at ``at`` (Unix time), as far as that still counts."""
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
        """Count at least ``used`` for a limit by the day or month, in addition to requests in flight."""
        counter = self._counters.setdefault(key, _Counter())
        now = int(self._clock() * 1000)
        counter.move_to(window, now // SLOT_MS, self._on(now))
        beyond = used + counter.pending - counter.count
        if beyond > 0:
            counter.count += beyond
            counter.told += beyond

    def own(self, key: str) -> tuple[int, int]:
        """Of a limit: what this process itself has settled, and what its requests in flight hold."""
        counter = self._counters.get(key)
        if counter is None:
            return 0, 0
        return max(0, counter.count - counter.told - counter.pending), counter.pending

    async def aclose(self) -> None:
        return None

    def _on(self, at: int) -> _Moment:
        if self._today.day != at // DAY_MS:
            self._today = _moment(at)
        return self._today

    def _wait(self, counter: _Counter, window: Window, maximum: int, amount: int, at: int) -> int:
        """Milliseconds until there is capacity for ``amount``; -1: as soon as requests in flight are settled."""
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
        """Drop counters that are zero."""
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
