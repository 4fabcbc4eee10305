"""What a request holds of its caller's limits while it is under way, and what may be sent upstream for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.metering.estimate import Estimator, LearnedEstimate
from gateway.metering.price import cost
from gateway.policy.schema import Policy
from gateway.quota.ask import Ask, ask
from gateway.quota.counters import Counters, Elastic, Verdict
from gateway.quota.limits import Amounts, Limits
from gateway.quota.reach import Reach, ReachBook
from gateway.types import Call, UpstreamUsage

NOTHING = Amounts(0, 0, 0)

Refuse = Callable[[Call, Limits, Verdict, Elastic], Exception]
"""Makes the error for a verdict that did not admit even the least of these amounts."""


@dataclass(slots=True)
class Reservation:
    """What an admitted request holds."""

    request_id: str
    limits: Limits
    held: Amounts
    since: float
    """``time.monotonic()``."""


@dataclass(frozen=True, slots=True)
class Books:
    """What all allowances share."""

    counters: Counters
    estimator: Estimator
    reaches: ReachBook
    refuse: Refuse


class Allowance:
    """See ``gateway.types.Allowance``. ``first`` is what was asked for at admission, at any place of ``reach``."""

    __slots__ = (
        *("_books", "_cap", "_estimate", "_first", "_lock", "_reach", "_request", "_reservation"),
        *("_fresh", "_spent", "_under_way", "_used"),
    )

    def __init__(
        self,
        books: Books,
        reservation: Reservation,
        call: Call,
        estimate: LearnedEstimate,
        reach: Reach,
        first: Ask,
    ) -> None:
        self._books = books
        self._reservation = reservation
        self._request = call.request
        self._estimate = estimate
        self._reach = reach
        self._first = first
        self._cap = first.affords(reservation.held, reservation.limits)
        """The cap that what is held was enough for, when it was asked for last."""
        self._fresh = True
        """Nobody else has ever held any of it."""
        self._spent: list[tuple[Policy, UpstreamUsage]] = []
        """Not yet in ``_used``: mostly nobody asks again. A call here would hold itself, and be left to the garbage
        collector with all that hangs on it."""
        self._used = NOTHING
        self._under_way: dict[int, tuple[Call, Ask, int]] = {}
        """By the identity of the call, which is kept so that nobody else gets it."""
        self._lock: asyncio.Lock | None = None

    async def hold(self, call: Call) -> int | None:
        wanted = self._ask(call)
        if self._fresh and wanted is self._first and self._cap >= 0:
            cap = self._cap
        else:
            cap = wanted.affords(self._free(call), self._reservation.limits)
            if cap < min(self._cap, wanted.cap):
                if self._lock is None:
                    self._lock = asyncio.Lock()
                async with self._lock:
                    cap = await self._extend(call, wanted)
        self._fresh = False
        self._under_way[id(call)] = call, wanted, cap
        needless = wanted.longest if wanted.declared is None else wanted.declared
        return None if needless is not None and cap >= needless else cap

    def most(self, call: Call) -> int | None:
        held = self._under_way.get(id(call))
        return None if held is None or self._reservation.limits.dollars is None else held[2] * held[1].answers

    def release(self, call: Call, spent: UpstreamUsage | None = None) -> None:
        self._under_way.pop(id(call), None)
        if spent is not None:
            self._fresh = False
            self._spent.append((call.policy, spent))

    def _ask(self, call: Call) -> Ask:
        books, candidate = self._books, call.candidate
        if candidate is None:
            reach = books.reaches.first(call)
        else:
            reach = books.reaches.target(call.policy, candidate.model, candidate.target)
        own = call.request is self._request
        if own and (reach is self._reach or reach == self._reach):
            return self._first
        # A continuation, or a judge's question, is another one than was asked for at first.
        estimate = self._estimate if own else books.estimator.estimate(call)
        return ask(call, estimate, reach, self._reservation.limits)

    def _taken(self, call: Call) -> Amounts:
        """What is spent, and what others hold that are under way."""
        for policy, spent in self._spent:
            usage = spent.usage
            nanodollars = cost(policy, spent.target, usage)
            self._used = _sum(self._used, Amounts(0, usage.prompt + usage.completion, nanodollars))
        self._spent.clear()
        taken = self._used
        for name, (_, wanted, cap) in self._under_way.items():
            if name != id(call):
                taken = _sum(taken, wanted.at(cap))
        return taken

    def _free(self, call: Call) -> Amounts:
        held, taken = self._reservation.held, self._taken(call)
        return Amounts(0, held.tokens - taken.tokens, held.nanodollars - taken.nanodollars)

    async def _extend(self, call: Call, wanted: Ask) -> int:
        """The cap that there is room for. Raises what ``refuse`` makes."""
        reservation = self._reservation
        limits, held, taken = reservation.limits, reservation.held, self._taken(call)
        least, usual, share = wanted.elastic
        amounts = _larger(held, _sum(taken, wanted.amounts))
        elastic = Elastic(_larger(held, _sum(taken, least)), _larger(held, _sum(taken, usual)), share)
        verdict = await self._books.counters.extend(reservation.request_id, limits, amounts, elastic)
        if verdict.admitted:
            # Where nobody counts, nothing is short.
            reservation.held = amounts if verdict.granted is None else verdict.granted
        cap = wanted.affords(self._free(call), limits)
        if cap < min(wanted.least, wanted.enough):
            raise self._books.refuse(call, limits, verdict, elastic)
        self._cap = cap
        return cap


def _sum(one: Amounts, other: Amounts) -> Amounts:
    tokens, nanodollars = one.tokens + other.tokens, one.nanodollars + other.nanodollars
    return Amounts(one.requests, tokens, nanodollars, one.answers)


def _larger(one: Amounts, other: Amounts) -> Amounts:
    tokens, nanodollars = max(one.tokens, other.tokens), max(one.nanodollars, other.nanodollars)
    return Amounts(one.requests, tokens, nanodollars, one.answers)
