"""Counters in this process's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.quota.clock import SteadyClock
from gateway.quota.counters import (
    SLOT_MS,
    SLOTS,
    Elastic,
    ElasticRequest,
    QuotaDecision,
)
from gateway.quota.limits import CONCURRENT, MOST_CALLERS, Amounts, Limits, Window
from gateway.quota.window_counter import NEVER, Moment, WindowCounter, leaves, moment_of

_SWEEP_AT = 4096
NOTHING = Amounts(0, 0, 0)


class _Held(NamedTuple):
    """What a request in flight has reserved, and when (milliseconds)."""

    at: int
    amounts: Amounts


class _Row(NamedTuple):
    """One of a caller's limits."""

    counter: WindowCounter
    column: int
    """In ``Amounts``."""
    maximum: int
    slides: bool
    """It is by the minute."""
    settles: bool
    """What is reserved is pending until the request has ended."""


class _Rows:
    """All limits of a caller."""

    __slots__ = ("each", "limits", "settled", "until")

    def __init__(self, limits: Limits, each: tuple[_Row, ...]) -> None:
        self.limits = limits
        self.each = each
        self.settled = tuple(row for row in each if row.settles or not row.slides)
        """Those to be corrected once a request has ended."""
        self.until = 0
        """When one of them may have to move."""

    def move_to(self, at: int, today: Moment) -> None:
        until = NEVER
        for counter, *_ in self.each:
            if at >= counter.until:
                counter.move_to(at, today)
            until = min(until, counter.until)
        self.until = until


class MemoryCounters:
    """``clock`` gives Unix time in seconds; the default is a ``SteadyClock``."""

    def __init__(self, *, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or SteadyClock()
        self._counters: dict[str, WindowCounter] = {}
        self._rows: dict[int, _Rows] = {}
        """By the identity of the limits, which are kept so that it is not reused."""
        self._held: dict[str, _Held] = {}
        """By request id, until settled."""
        self._sweep_at = _SWEEP_AT
        self._today = moment_of(0)

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
        rows = self._rows.get(id(limits)) or self._rows_of(limits)
        if at >= rows.until:
            rows.move_to(at, self._on(at))
        divisor = 1 if elastic is None else elastic.divisor
        fits = True
        for counter, column, maximum, _, _ in rows.each:
            if amounts[column] * divisor > maximum - counter.count:
                fits = False
        again = self._held.get(request_id)
        granted = taken = amounts
        refused, wait = -1, None
        if again is not None:
            granted, taken = again.amounts, NOTHING
        elif not fits:
            taken, refused, wait = self._divided(rows.each, amounts, elastic, at)
            granted = taken = taken if refused < 0 else NOTHING
        slot = at // SLOT_MS
        ends = leaves(slot)
        used, resets = [], []
        for counter, column, _, slides, settles in rows.each:
            if amount := taken[column]:
                counter.count += amount
                if slides:
                    slots = counter.slots
                    slots[slot] = slots.get(slot, 0) + amount
                    if ends > counter.ends:
                        counter.ends = ends
                if settles:
                    counter.pending += amount
            used.append(counter.count)
            resets.append((counter.ends - at) / 1000 if counter.ends > at else 0.0)
        if refused >= 0:
            return QuotaDecision(False, tuple(used), tuple(resets), refused, wait)
        if again is None and limits.settles:
            self._held[request_id] = _Held(at, granted)
        if len(self._counters) > self._sweep_at:
            self._sweep(at)
        return QuotaDecision(True, tuple(used), tuple(resets), -1, None, granted)

    def _rows_of(self, limits: Limits) -> _Rows:
        known = self._counters
        each: list[_Row] = []
        for window, key, column, maximum in limits.rules:
            counter = known.get(key)
            if counter is None:
                counter = known[key] = WindowCounter(window)
            each.append(_Row(counter, column, maximum, window == "minute", bool(column)))
        rows = _Rows(limits, tuple(each))
        if len(self._rows) >= MOST_CALLERS:
            self._rows.clear()
        self._rows[id(limits)] = rows
        return rows

    def _divided(
        self, rows: Sequence[_Row], amounts: Amounts, elastic: ElasticRequest | None, at: int
    ) -> tuple[Amounts, int, float | None]:
        """What is granted where not all limits have capacity for all that is asked for; the index of the limit that
        refuses, or -1, and the wait that it tells.
        """
        divisor = 1 if elastic is None else elastic.divisor
        granted = amounts
        refused, longest = -1, -2
        for i, (counter, column, maximum, _, _) in enumerate(rows):
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
                if counter.window != "now" and free < (usual := bounds.usual[column]) <= free + releasable:
                    need = min(usual, most)
            if take < need:
                wait = self._wait(counter, maximum, need, at)
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
        slot, then = now // SLOT_MS, at // SLOT_MS
        live = then >= slot - SLOTS
        rows = self._rows.get(id(limits)) or self._rows_of(limits)
        if now >= rows.until:
            rows.move_to(now, self._on(now))
        for counter, column, maximum, slides, _ in rows.settled:
            amount, pending = amounts[column], counter.pending
            if slides:
                counter.pending = pending - amount if amount < pending else 0
                if (beyond := used[column] - amount) > 0:
                    counter.charge(then if live else slot, beyond, maximum)
                elif live and beyond:
                    counter.add(then, beyond)
            elif at >= counter.begins:
                if amount > pending:
                    amount = pending
                counter.pending = pending - amount
                counter.count += (0 if column == CONCURRENT else used[column]) - amount

    def _restore(self, held: _Held, limits: Limits, now: int) -> None:
        for counter, column, _, slides, _ in (self._rows.get(id(limits)) or self._rows_of(limits)).each:
            amount = held.amounts[column]
            if slides:
                counter.pending += amount
                if amount and self._is_live(held.at, now):
                    counter.add(held.at // SLOT_MS, amount)
            elif held.at >= counter.begins:
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
        now, then = int(self._clock() * 1000), int(at * 1000)
        counter = self._counter(key, window, now)
        if window == "minute":
            if self._is_live(then, now):
                counter.add(min(then, now) // SLOT_MS, count)
        elif window != "now" and then >= counter.begins:
            counter.count += count

    def remember(self, key: str, window: Window, used: int) -> None:
        """Count at least ``used`` for a limit by the day or month, in addition to requests in flight."""
        counter = self._counter(key, window, int(self._clock() * 1000))
        beyond = used + counter.pending - counter.count
        if beyond > 0:
            counter.count += beyond
            counter.told += beyond

    def copied(self, limits: Limits) -> MemoryCounters:
        """Of these limits all that counts now; what is counted there does not count here."""
        copy = MemoryCounters(clock=self._clock)
        for key in limits.keys:
            if (counter := self._counters.get(key)) is not None:
                copy._counters[key] = counter.copied()
        return copy

    def own(self, key: str) -> tuple[int, int]:
        """Of a limit: what this process itself has settled, and what its requests in flight hold."""
        counter = self._counters.get(key)
        if counter is None:
            return 0, 0
        return max(0, counter.count - counter.told - counter.pending), counter.pending

    async def aclose(self) -> None:
        return None

    def _counter(self, key: str, window: Window, now: int) -> WindowCounter:
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = WindowCounter(window)
        counter.move_to(now, self._on(now))
        return counter

    def _on(self, at: int) -> Moment:
        today = self._today
        if not today.day_begins <= at < today.day_ends:
            self._today = today = moment_of(at)
        return today

    def _wait(self, counter: WindowCounter, maximum: int, amount: int, at: int) -> int:
        """Milliseconds until there is capacity for ``amount``; -1: as soon as requests in flight are settled."""
        window = counter.window
        if window == "now" or counter.count - min(counter.pending, counter.count) + amount <= maximum:
            return -1
        if window == "minute":
            left, wait = counter.count, 0
            for slot in sorted(counter.slots):
                left -= counter.slots[slot]
                wait = leaves(slot) - at
                if left + amount <= maximum:
                    break
            return wait
        return counter.ends - at

    def _sweep(self, at: int) -> None:
        """Drop counters that are zero."""
        self._counters = {
            key: counter
            for key, counter in self._counters.items()
            if (counter.ends > at if counter.slots else counter.count)
        }
        self._rows.clear()
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._counters))
