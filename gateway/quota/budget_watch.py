"""Which shares of a budget have been spent: each mark is told once in a period, by whoever passes it.

What counts is what settled requests cost, not what those in flight hold: that is far more than they will need. All
workers and replicas add to the same sums, and the one whose addition passes a mark tells it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from gateway.quota.counters import QuotaDecision
from gateway.quota.limits import Limit, Limits
from gateway.stores.store import StoreDown
from gateway.stores.tally import Tally

log = logging.getLogger(__name__)

PAUSE = 0.2
"""Seconds in which what was spent comes together before it is added."""
TTL = 40 * 86_400.0
"""Longer than any period."""
_MOST_HELD = 10_000
"""Sums that wait for a store that is away."""


class BudgetReached(NamedTuple):
    """``share`` of ``limit``, a budget, has been spent in ``period``, or it has begun to refuse."""

    limit: Limit
    period: str
    """``2026-11-23``, or ``2026-11`` for a month's, in UTC."""
    share: float | None
    """None: a request was refused, as what is left is too small for it."""
    nanodollars: int
    """Spent in the period."""


class BudgetWatch:
    """``tell`` is called on the event loop. ``tally`` stays the caller's to close."""

    def __init__(
        self,
        shares: Iterable[float],
        tally: Tally,
        tell: Callable[[BudgetReached], object],
        *,
        clock: Callable[[], float] = time.time,
        pause: float = PAUSE,
    ) -> None:
        self.shares = tuple(sorted(set(shares)))
        self.tally = tally
        self._tell = tell
        self._clock = clock
        self._pause = pause
        self._since = clock()
        self._waiting: dict[tuple[Limit, str], int] = {}
        self._held: dict[str, int] = {}
        """By a limit's key: what this process's requests in flight hold."""
        self._before: dict[tuple[Limit, str], int] = {}
        """What had been spent in a period before it was first looked at."""
        self._new: set[tuple[Limit, str]] = set()
        """First looked at, which the others are still to be told."""
        self._refused: dict[tuple[Limit, str], bool] = {}
        """Budgets that refuse, and whether that is still to be told."""
        self._today = self._month = ""
        self._until = float("-inf")
        """When these have other names."""
        self._began: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._closing = False

    def admitted(self, limits: Limits, decision: QuotaDecision, held: int) -> None:
        """A request holds ``held`` nano-dollars of each budget."""
        for limit, used in zip(limits.each, decision.used, strict=False):
            if limit.quantity == "dollars":
                mine = self._held.get(limit.key, 0)
                period, began = self._period(limit)
                if began < self._since and (limit, period) not in self._before:
                    self._before[limit, period] = max(0, used - held - mine)
                    self._new.add((limit, period))
                    self._add(limit, 0)
                    # Whoever looks next sees what this process spends from here on, and must not count that as well.
                    self._hurry.set()
                self._held[limit.key] = mine + held

    def settled(self, limits: Limits, held: int, spent: int) -> None:
        """That request has ended, and cost ``spent``."""
        for limit in limits.each:
            if limit.quantity == "dollars":
                left = self._held.get(limit.key, 0) - held
                if left > 0:
                    self._held[limit.key] = left
                else:
                    self._held.pop(limit.key, None)
                if spent:
                    self._add(limit, spent)

    def refused(self, limit: Limit) -> None:
        """A budget has no room for a request, and will have none for it in this period."""
        period, _ = self._period(limit)
        if (limit, period) not in self._refused:
            if len(self._refused) >= _MOST_HELD:
                self._refused.clear()
            self._refused[limit, period] = True
            self._add(limit, 0)

    async def aclose(self) -> None:
        """What waits is added."""
        self._closing = True
        self._hurry.set()
        if self._task is not None:
            await self._task
        if self._waiting:
            await self._flush()
        self._closing = False

    def _add(self, limit: Limit, spent: int) -> None:
        period, _ = self._period(limit)
        if len(self._waiting) < _MOST_HELD or (limit, period) in self._waiting:
            self._waiting[limit, period] = self._waiting.get((limit, period), 0) + spent
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._soon(), name="budgets")

    async def _soon(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause):
                await self._hurry.wait()
        self._hurry.clear()
        try:
            await self._flush()
        except Exception:
            log.exception("budgets that were reached could not be told")
        self._task = None
        if (
            self._waiting and not self._closing
        ):  # what came meanwhile, or what a store that is away did not take
            self._task = asyncio.get_running_loop().create_task(self._soon(), name="budgets")

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        new, self._new = self._new, set()
        names = {_name(*one): one for one in waiting}
        amounts = {name: waiting[one] for name, one in names.items()} | {_looked(*one): 1 for one in new}
        try:
            sums = await self.tally.add(amounts, TTL)
            late = {
                name: self._before[one]
                for name, one in names.items()
                if one in new and sums.get(_looked(*one)) == 1 and sums.get(name) == waiting[one]
            }
            if late:  # nobody has looked or counted before: what was spent until then is added once
                sums |= await self.tally.add(late, TTL)
        except StoreDown:
            for one, spent in waiting.items():
                self._waiting[one] = self._waiting.get(one, 0) + spent
            self._new |= new
            self._pause = max(self._pause, 1.0)
            return
        for name, one in names.items():
            if name in sums:
                self._passed(*one, sums[name] - waiting[one] - late.get(name, 0), sums[name])
        self._forget()

    def _passed(self, limit: Limit, period: str, before: int, now: int) -> None:
        for share in self.shares:
            if before < share * limit.maximum <= now:
                self._tell(BudgetReached(limit, period, share, now))
        if self._refused.get((limit, period)):
            self._refused[limit, period] = False
            self._tell(BudgetReached(limit, period, None, now))

    def _forget(self) -> None:
        """What is of no period that goes on."""
        current = (self._today, self._month)
        for known in (self._before, self._refused):
            for one in [one for one in known if one[1] not in current]:
                del known[one]

    def _period(self, limit: Limit) -> tuple[str, float]:
        """Its name and when it began."""
        now = self._clock()
        if now >= self._until:
            moment = datetime.fromtimestamp(now, UTC)
            day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
            self._today, self._month = day.strftime("%Y-%m-%d"), day.strftime("%Y-%m")
            self._began = {"day": day.timestamp(), "month": day.replace(day=1).timestamp()}
            self._until = day.timestamp() + 86_400
        if limit.window == "month":
            return self._month, self._began["month"]
        return self._today, self._began["day"]


def _name(limit: Limit, period: str) -> str:
    return f"spent:{limit.key}:{period}"


def _looked(limit: Limit, period: str) -> str:
    """Who adds to this first is the first who has looked at the budget in this period."""
    return f"looked:{limit.key}:{period}"
