"""The facade: what a request may take is reserved before it goes on, and settled when it has ended."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Self

from gateway.errors import BadRequest, BudgetSpent, Forbidden, Overloaded, RateLimited, TooManyAnswers
from gateway.metering.estimate import Estimator, LearnedEstimate
from gateway.metering.price import NANO
from gateway.metering.window_usage import WindowUsage
from gateway.policy.limited import has_limits
from gateway.policy.prices import UNIT_PRICES
from gateway.policy.schema import Policy
from gateway.quota.allowance import Allowance, AllowanceContext, Reservation
from gateway.quota.budget_watch import BudgetWatch
from gateway.quota.counters import Counters, Elastic, QuotaDecision
from gateway.quota.limits import Amounts, Limit, Limits, LimitsCache, calendar_groups, counted
from gateway.quota.memory import MemoryCounters
from gateway.quota.quota_request import QuotaRequest, quota_request
from gateway.quota.spread import SpreadCounters
from gateway.quota.store_outage import FailoverCounters
from gateway.quota.target_bounds import TargetBounds, TargetBoundsCache
from gateway.stores.redis_parts import prefixes
from gateway.stores.store import StoreDown
from gateway.types import Call, Principal, TokenEstimate

NO_RETRY = {"x-should-retry": "false"}
"""Understood by OpenAI's and Anthropic's clients, which otherwise try every 429 again at once."""
FIRST_DURATION = 1.0
LONGEST_WAIT = 59.0
"""Seconds, the longest retry-after of a limit per minute, although it slides in steps and may take slightly longer:
OpenAI's SDKs ignore a retry-after of a minute or more, and would retry at once."""


class Quotas:
    """One for the process and store. ``clock`` gives Unix time to counters in memory."""

    def __init__(
        self, store: str, *, estimator: Estimator | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self.estimator = estimator or Estimator()
        self._memory = memory = MemoryCounters(clock=clock)
        self._counters: Counters = memory if store == "memory" else open_counters(store, clock)
        self._limits = LimitsCache()
        self._context = AllowanceContext(self._counters, self.estimator, TargetBoundsCache(), self._refuse)
        self.budgets: BudgetWatch | None = None
        """Is told what is spent."""
        self._duration = FIRST_DURATION
        """Seconds, the mean duration of limited requests."""

    @classmethod
    def open(cls, policy: Policy, *, estimator: Estimator | None = None) -> Self:
        """For the policy's store. Connects, and starts what runs in the background, at the first need only."""
        return cls(policy.store, estimator=estimator)

    async def reserve(self, call: Call) -> Reservation | None:
        """Estimate ``call``, and hold that against every limit of the caller; None where there is no limit.

        Sets ``call.allowance`` where tokens or dollars are limited, and the ``x-ratelimit`` reply headers. Raises
        ``RateLimited``, ``BudgetSpent`` for dollars that are spent, ``BadRequest`` for what can never fit
        (``TooManyAnswers`` where it asks for more answers than may run at once),
        ``Forbidden`` for a model without a price under a budget, ``Overloaded`` where the policy says
        ``closed`` and the store is down.
        """
        if self._counters is self._memory:
            return self.reserve_now(call)
        asked = self._asked(call)
        if asked is None:
            return None
        limits, _, _, wanted, amounts = asked
        decision = await self._counters.reserve(call.request_id, limits, amounts, wanted)
        return self._decided(call, asked, decision)

    def reserve_now(self, call: Call) -> Reservation | None:
        """``reserve`` with counters in memory, without waiting. A refusal changes nothing."""
        asked = self._asked(call)
        if asked is None:
            return None
        limits, _, _, wanted, amounts = asked
        decision = self._memory.reserve_now(call.request_id, limits, amounts, wanted)
        return self._decided(call, asked, decision)

    def _asked(self, call: Call) -> _Asked | None:
        call.estimate, call.estimator = None, self.estimator
        limits = self._limits.limits(call.policy, call.principal)
        if call.payer is not None:
            limits = limits.of_spending
        if call.line is not None:
            limits = limits.of_batches
        if not limits:
            return None
        call.estimate = estimate = self.estimator.estimate(call)
        if limits.dollars is not None:
            self._check_priced(call, limits.dollars)
        bounds = self._context.target_bounds.first(call)
        wanted = quota_request(call, estimate, bounds, limits)
        amounts = wanted.at(wanted.cap)
        self._refuse_impossible(call, limits, wanted, amounts)
        return limits, estimate, bounds, wanted, amounts

    def _decided(self, call: Call, asked: _Asked, decision: QuotaDecision) -> Reservation:
        limits, estimate, bounds, wanted, amounts = asked
        if not decision.used:
            call.receipt.note("quota", unmetered="the store is away")
        call.reply_headers.update(ratelimit_headers(limits, decision))
        if not decision.admitted:
            raise self._refuse(call, limits, decision, wanted.elastic)
        held = amounts if decision.granted is None else decision.granted
        reservation = Reservation(call.request_id, limits, held, time.monotonic())
        if self.budgets is not None and limits.dollars is not None:
            self.budgets.admitted(limits, decision, held.nanodollars)
            reservation.watched = held.nanodollars
        if limits.tokens is not None or limits.dollars is not None:
            reserved = held.tokens - wanted.prompt if limits.tokens is not None else estimate.reserved
            cap = wanted.cap if held is amounts else wanted.affords(held, limits)
            call.allowance = Allowance(self._context, reservation, call, estimate, bounds, wanted, cap)
            estimate.hold(wanted.prompt, reserved)
        return reservation

    def limited(self, policy: Policy, principal: Principal) -> bool:
        """Whether there is any limit on what ``principal`` sends."""
        return bool(self._limits.limits(policy, principal))

    async def used(self, policy: Policy, principal: Principal) -> list[tuple[Limit, int, float]]:
        """Each limit of ``principal``, what counts against it now, and the seconds until none of that does.

        Empty while the store is down.
        """
        limits = self._limits.limits(policy, principal)
        if not limits:
            return []
        nothing, name = Amounts(0, 0, 0), f"look_{secrets.token_hex(8)}"
        try:
            decision = await self._counters.reserve(name, limits, nothing)
        except (Overloaded, StoreDown):
            return []
        self._counters.settle(name, limits, nothing)
        return list(zip(limits.each, decision.used, decision.reset, strict=False))

    async def copied(self, policy: Policy, principal: Principal) -> Quotas:
        """One that decides on a request of ``principal`` as this one would now, and counts apart. From a store it has
        what counts, though not when it did: its waits are those of usage that began now."""
        copy = Quotas("memory", estimator=self.estimator)
        copy._duration = self._duration
        limits = self._limits.limits(policy, principal)
        if self._counters is self._memory:
            counters = self._memory.copied(limits)
        else:
            counters, now = MemoryCounters(), time.time()
            for limit, used, _ in await self.used(policy, principal):
                counters.begin(limit.key, limit.window, used, now)
        copy._memory = copy._counters = counters
        copy._context = AllowanceContext(counters, self.estimator, TargetBoundsCache(), copy._refuse)
        return copy

    def own(self, limit: Limit) -> tuple[int, int]:
        """Of what counts in memory against a limit: what this process has settled since it started, and what its
        requests in flight hold. The rest is from the ledger, and other workers may count it, too."""
        return self._memory.own(limit.key)

    def settle(self, reservation: Reservation, *, tokens: int, nanodollars: int) -> None:
        """Once the request has ended, however it did. Does not wait; repeating it changes nothing."""
        self._duration += 0.1 * (time.monotonic() - reservation.since - self._duration)
        held = reservation.held
        used = Amounts(held.requests, tokens, nanodollars, held.answers)
        self._counters.settle(reservation.request_id, reservation.limits, used)
        if reservation.watched is not None:
            watched, reservation.watched = reservation.watched, None
            if self.budgets is not None:
                self.budgets.settled(reservation.limits, watched, nanodollars)

    def closed(self, policy: Policy) -> str | None:
        """Why every limited request is refused now, or None."""
        away = isinstance(self._counters, _SHARED) and self._counters.away
        if not away or policy.on_store_failure != "closed" or not has_limits(policy):
            return None
        return "Redis does not answer, and 'on_store_failure: closed' refuses all that is under limits"

    @property
    def store_up(self) -> float | None:
        """Whether the store answered when it was last asked, of a cluster the share that did; None for counters in
        memory."""
        return self._counters.up if isinstance(self._counters, _SHARED) else None

    @property
    def losses(self) -> int:
        """How often the store was found to have lost its data, or another to have taken its place: of each part of a
        cluster."""
        return self._counters.losses if isinstance(self._counters, _SHARED) else 0

    def watch(self) -> None:
        """Start to learn what other processes use. Does not wait, nor fail."""
        if isinstance(self._counters, _SHARED):
            self._counters.watch()

    async def remember(self, usage: Iterable[WindowUsage], policy: Policy) -> None:
        """Count at least what the ledger has recorded: counters in memory start with their process, and those of a
        store may have been lost. A store that does not answer is told once it does."""
        used = counted(usage)
        if isinstance(self._counters, _SHARED):
            groups = calendar_groups(policy)
            await self._counters.remember(
                {name: amount for name, amount in used.items() if name[0] in groups}, groups
            )
        for (key, window), amount in used.items():
            self._memory.remember(key, window, amount)

    def restore_from(
        self, read: Callable[[], Awaitable[Iterable[WindowUsage] | None]], policy: Policy
    ) -> None:
        """What the ledger has recorded until now, for a store that loses its data; None where it cannot be read."""
        if not isinstance(self._counters, _SHARED):
            return
        groups = calendar_groups(policy)

        async def recorded() -> Mapping[str, int] | None:
            usage = await read()
            if usage is None:
                return None
            return dict.fromkeys(groups, 0) | {
                key: amount for (key, _), amount in counted(usage).items() if key in groups
            }

        self._counters.restore_from(recorded, groups)

    async def aclose(self) -> None:
        """Pending settlements have 3 s to be sent."""
        if self.budgets is not None:
            await self.budgets.aclose()
        await self._counters.aclose()

    def _check_priced(self, call: Call, budget: Limit) -> None:
        """A budget can only be enforced for what has a price."""
        if (
            call.policy.on_unpriced == "refuse"
            and (target := self._context.target_bounds.unpriced(call)) is not None
        ):
            unit = UNIT_PRICES.get(call.request.api)
            price = (
                "price"
                if unit is None
                else f"price for such requests (`{unit}`, or tokens with `only_tokens`)"
            )
            raise Forbidden(
                f"The model `{call.request.model}` may be answered by {target}, which has no {price}, and the budget "
                f"({budget}) cannot hold what nobody can count. Ask whoever runs the gateway to add a price for it, "
                "or choose another model.",
                code="model_has_no_price",
            )
        form = call.request.form
        if form is not None and form.unmeasured is not None and call.policy.on_unpriced == "refuse":
            bounds = self._context.target_bounds.first(call)
            if any(bounds.rates) or any(rates.has("second") for rates in bounds.units):
                raise BadRequest(
                    f"Nobody can tell how long '{form.unmeasured[:80]}' plays, and the budget ({budget}) cannot hold "
                    "what nobody can count. Send it as WAV, MP3, FLAC, Ogg or WebM with Opus, or MP4 with AAC.",
                    param="file",
                    code="sound_without_length",
                    headers=NO_RETRY,
                )

    def _refuse_impossible(self, call: Call, limits: Limits, wanted: QuotaRequest, amounts: Amounts) -> None:
        """Raise for what would not fit even if nothing else were counted."""
        if (concurrent := limits.concurrent) is not None and amounts.answers > concurrent.maximum:
            raise TooManyAnswers(
                f"This request asks for {amounts.answers:,} answers at once (prompts times n or best_of), and the "
                f"limit is {concurrent}. Ask for fewer, in several requests.",
                param="n" if call.request.messages is not None else "prompt",
                headers=NO_RETRY,
            )
        tokens, dollars = limits.tokens, limits.dollars
        if (tokens is None or amounts.tokens <= tokens.maximum) and (
            dollars is None or amounts.nanodollars <= dollars.maximum
        ):
            return
        shortest = wanted.at(wanted.enough)
        if (bucket := limits.tokens) is not None and shortest.tokens > bucket.maximum:
            raise BadRequest(
                f"This request can never be admitted: its prompt of {'up to' if limits.strict else 'about'} "
                f"{wanted.prompt:,} tokens is more than the limit of {bucket} allows at once. Make the prompt shorter.",
                param="messages",
                code="tokens_exceed_limit",
                headers=NO_RETRY,
            )
        if (budget := limits.dollars) is not None and shortest.nanodollars > budget.maximum:
            cost = _figure(budget, shortest.nanodollars)
            raise BudgetSpent(
                f"This request can never be admitted: it may cost {cost}, and the limit is {budget}. Make the "
                "prompt shorter, or choose a cheaper model.",
                headers=NO_RETRY,
            )

    def _refuse(self, call: Call, limits: Limits, decision: QuotaDecision, elastic: Elastic) -> RateLimited:
        headers = ratelimit_headers(limits, decision)
        if decision.refused < 0:
            error = RateLimited("This request is over, and nothing more is sent for it.", headers=headers)
            error.limit = "over"
            return error
        limit = limits.each[decision.refused]
        wait = decision.wait
        needed = limit.amount(elastic.usual if wait is None else elastic.least)
        if wait is None:
            # The time in which so many slots become free.
            wait = max(0.1, self._duration * (needed / limit.maximum if limit.window == "now" else 1))
        elif limit.window == "minute":
            wait = min(wait, LONGEST_WAIT)
        spent = limit.quantity == "dollars" and decision.wait is not None
        if spent and self.budgets is not None:
            self.budgets.refused(limit)
        call.receipt.note("quota", refused=str(limit), retry_after=round(wait, 3))
        held = " by it and by requests in flight" if decision.wait is None and limit.window != "now" else ""
        message = (
            f"{'You exceeded your current quota, the budget' if spent else 'Rate limit reached'} for {limit}. "
            f"{_figure(limit, decision.used[decision.refused])} used{held}, this request needs "
            f"{_figure(limit, needed)}. Try again in {duration(wait)}."
        )
        kind = BudgetSpent if spent else RateLimited
        error = kind(message, retry_after=wait, headers=headers | NO_RETRY if spent else headers)
        error.limit = str(limit)
        return error


_Asked = tuple[Limits, LearnedEstimate, TargetBounds, QuotaRequest, Amounts]
"""What one request asks of its caller's limits: a tuple, as an instance of a class costs a microsecond more."""


_SHARED = (FailoverCounters, SpreadCounters)


def open_counters(url: str, clock: Callable[[], float] | None = None) -> FailoverCounters | SpreadCounters:
    """In Redis. ``url`` as for ``RedisAddress``."""
    # It loads the client library, which counters in memory do without.
    from gateway.quota.redis import PREFIX, RedisCounters, outage_log

    places = prefixes(url, "quota", PREFIX)
    told = outage_log(len(places))
    parts = [FailoverCounters(RedisCounters(url, prefix=prefix, told=told), clock=clock) for prefix in places]
    return SpreadCounters(parts) if len(parts) > 1 else parts[0]


def tokens_of(estimate: TokenEstimate) -> int:
    return estimate.prompt + estimate.reserved


def ratelimit_headers(limits: Limits, decision: QuotaDecision) -> dict[str, str]:
    """OpenAI's: of the limits per minute, the one with the least remaining, for requests and for tokens.

    ``reset`` is when all of it remains again (https://platform.openai.com/docs/guides/rate-limits).
    """
    headers: dict[str, str] = {}
    if not decision.used:
        return headers
    used = decision.used
    for (limit, remaining, reset), candidates in limits.ratelimit_headers:
        tightest = candidates[0]
        if len(candidates) > 1:
            tightest = min(candidates, key=lambda one: one[1] - used[one[0]])
        i, maximum, headers[limit] = tightest
        left = maximum - used[i]
        headers[remaining] = str(left) if left > 0 else "0"
        headers[reset] = _rounded(math.ceil(decision.reset[i] * 10))
    return headers


@lru_cache(maxsize=1024)
def _rounded(tenths: int) -> str:
    """A wait as the headers have it: rounded up to a tenth of a second."""
    return duration(tenths / 10)


def duration(seconds: float) -> str:
    """As OpenAI writes it: ``120ms``, ``1s``, ``7.66s``, ``6m0s``, ``1h0m0s``."""
    ms = max(0, round(seconds * 1000))
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    text = f"{rest / 1000:g}s" if rest % 1000 == 0 else f"{rest / 1000:.3f}".rstrip("0") + "s"
    if not minutes:
        return text
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"


def _figure(limit: Limit, amount: int) -> str:
    return f"${amount / NANO:,.6g}" if limit.quantity == "dollars" else f"{amount:,}"
