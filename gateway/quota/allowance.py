"""What a request has reserved of its caller's limits, and what may be sent upstream on its account."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.metering.estimate import Estimator, LearnedEstimate
from gateway.metering.price import cost, discounted
from gateway.policy.schema import Policy
from gateway.quota.counters import Counters, Elastic, QuotaDecision
from gateway.quota.limits import Amounts, Limits
from gateway.quota.quota_request import QuotaRequest, quota_request
from gateway.quota.target_bounds import TargetBounds, TargetBoundsCache
from gateway.types import Call, UpstreamUsage

NOTHING = Amounts(0, 0, 0)

Refuse = Callable[[Call, Limits, QuotaDecision, Elastic], Exception]
"""Makes the error for a decision that did not grant even the least of these amounts."""


@dataclass(slots=True)
class Reservation:
    """What an admitted request holds."""

    request_id: str
    limits: Limits
    held: Amounts
    since: float
    """``time.monotonic()``."""
    watched: int | None = None
    """Nano-dollars that a ``BudgetWatch`` was told to be held; None: it was told nothing."""


@dataclass(frozen=True, slots=True)
class AllowanceContext:
    """What all allowances share."""

    counters: Counters
    estimator: Estimator
    target_bounds: TargetBoundsCache
    refuse: Refuse


class Allowance:
    """See ``gateway.types.Allowance``. ``first`` is what was asked for at admission, for any target within
    ``bounds``."""

    __slots__ = (
        *("_context", "_cap", "_estimate", "_first", "_lock", "_bounds", "_request", "_reservation"),
        *("_expected", "_factor", "_fresh", "_unpriced", "_in_flight", "_used"),
    )

    def __init__(
        self,
        context: AllowanceContext,
        reservation: Reservation,
        call: Call,
        estimate: LearnedEstimate,
        bounds: TargetBounds,
        first: QuotaRequest,
        cap: int,
    ) -> None:
        self._context = context
        self._reservation = reservation
        self._request = call.request
        self._estimate = estimate
        self._expected = estimate.expected
        """As learned, before anything was held."""
        self._bounds = bounds
        self._first = first
        self._cap = cap
        """The cap that the reservation covered, when last asked."""
        self._fresh = True
        """No attempt has held any of it yet."""
        self._factor = 1.0 if call.line is None else call.line.price_factor
        self._unpriced: list[tuple[Policy, UpstreamUsage]] = []
        """Not yet in ``_used``, as there is mostly one attempt only. A ``Call`` here would be a reference cycle, left
        to the garbage collector with all that it refers to."""
        self._used = NOTHING
        self._in_flight: dict[int, tuple[Call, QuotaRequest, int]] = {}
        """By the identity of the call, which is kept so that it is not reused."""
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
        self._in_flight[id(call)] = call, wanted, cap
        needless = wanted.longest if wanted.declared is None else wanted.declared
        return None if needless is not None and cap >= needless else cap

    def most(self, call: Call) -> int | None:
        held = self._in_flight.get(id(call))
        return None if held is None or self._reservation.limits.dollars is None else held[2] * held[1].answers

    def bounds(self, call: Call) -> tuple[int, int] | None:
        if (held := self._in_flight.get(id(call))) is None:
            return None
        _, wanted, cap = held
        limits = self._reservation.limits
        if not wanted.priced and (not limits.strict or limits.tokens is None):
            return None
        return wanted.bound, max(cap, 0) * wanted.answers

    def release(self, call: Call, used: UpstreamUsage | None = None) -> None:
        self._in_flight.pop(id(call), None)
        if used is not None:
            self._fresh = False
            self._unpriced.append((call.policy, used))

    def _ask(self, call: Call) -> QuotaRequest:
        context, candidate = self._context, call.candidate
        if candidate is None:
            bounds = context.target_bounds.first(call)
        else:
            bounds = context.target_bounds.target(call.policy, candidate.model, candidate.target)
        own = call.request is self._request
        if own and (bounds is self._bounds or bounds == self._bounds):
            return self._first
        # A continuation, or a judge's question, is a different request.
        estimate = (
            replace(self._estimate, expected=self._expected) if own else context.estimator.estimate(call)
        )
        return quota_request(call, estimate, bounds, self._reservation.limits)

    def _taken(self, call: Call) -> Amounts:
        """What is used, and what other attempts in flight hold."""
        for policy, used in self._unpriced:
            usage = used.usage
            nanodollars = discounted(cost(policy, used.target, usage), self._factor)
            self._used = _sum(self._used, Amounts(0, usage.prompt + usage.completion, nanodollars))
        self._unpriced.clear()
        taken = self._used
        for name, (_, wanted, cap) in self._in_flight.items():
            if name != id(call):
                taken = _sum(taken, wanted.at(cap))
        return taken

    def _free(self, call: Call) -> Amounts:
        held, taken = self._reservation.held, self._taken(call)
        return Amounts(0, held.tokens - taken.tokens, held.nanodollars - taken.nanodollars)

    async def _extend(self, call: Call, wanted: QuotaRequest) -> int:
        """The cap that there is capacity for. Raises what ``refuse`` makes."""
        reservation = self._reservation
        limits, held, taken = reservation.limits, reservation.held, self._taken(call)
        least, usual, share = wanted.elastic
        amounts = _larger(held, _sum(taken, wanted.amounts))
        elastic = Elastic(_larger(held, _sum(taken, least)), _larger(held, _sum(taken, usual)), share)
        decision = await self._context.counters.extend(reservation.request_id, limits, amounts, elastic)
        if decision.admitted:
            # Where nothing is counted, nothing is short.
            reservation.held = amounts if decision.granted is None else decision.granted
        cap = wanted.affords(self._free(call), limits)
        if cap < min(wanted.least, wanted.enough):
            raise self._context.refuse(call, limits, decision, elastic)
        self._cap = cap
        return cap


def _sum(one: Amounts, other: Amounts) -> Amounts:
    tokens, nanodollars = one.tokens + other.tokens, one.nanodollars + other.nanodollars
    return Amounts(one.requests, tokens, nanodollars, one.answers)


def _larger(one: Amounts, other: Amounts) -> Amounts:
    tokens, nanodollars = max(one.tokens, other.tokens), max(one.nanodollars, other.nanodollars)
    return Amounts(one.requests, tokens, nanodollars, one.answers)
