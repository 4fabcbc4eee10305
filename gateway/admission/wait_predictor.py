"""The predicted wait of a request that would be queued now, and its refusal where it is hardly in time.

What is predicted is a mean, and says little of one request where single requests do not take what they are expected to.
What became of others is learned, by tier, tenant, model and prompt, and decides (``PredictionErrors``,
``WaitChances``): refused is who is in time with a probability below ``CHANCE``, and nobody before enough is known.

A backend's throughput gives a first estimate. Where that is close to the limit, and service times are predictable, the
slots are simulated: each request in flight ends when it is expected to, and those ahead take the slots first.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import chain, repeat

from gateway.admission.fair_queue import QueueTerms
from gateway.admission.pool import Pool
from gateway.admission.prediction_errors import Kinds
from gateway.errors import Overloaded

CERTAIN = 0.7
"""How predictable single requests must be for a place in line to tell anything (``SpeedEstimator.certainty``)."""
FAR = 2.5
"""A first estimate beyond the limit by this factor, either way, is not refined."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A request that is about to be queued."""

    tier: str
    terms: QueueTerms
    tenant: str
    tokens: int
    answers: int
    service: float
    """Expected seconds from dispatch to the last token; 0 where it is not known."""
    kind: Hashable = None
    """Its model, and how long a prompt it has."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a request has ahead of it, in seconds; 0 where it is not known."""

    wait: float
    service: float
    wait_kinds: Kinds = ()
    """As what its wait is learned,"""
    kinds: Kinds = ()
    """and the whole of it."""
    in_vain: bool = False
    """It hardly gets a slot within the longest wait."""
    soonest_end: float = 0.0
    """Before which it is hardly complete,"""
    soonest_service: float = 0.0
    """however soon it begins."""
    learnt: float = 0.0
    """``soonest_end``, where it is by what was learned."""
    by_throughput: float = 0.0
    """The wait by the backend's throughput alone."""


def check_wait(pool: Pool, newcomer: Newcomer, *, max_wait: float, left: float | None) -> Forecast:
    """Raises ``Overloaded`` where it hardly begins within ``max_wait`` seconds, or hardly ends in those that are
    ``left``."""
    one, speed = newcomer, pool.speed
    wait = pool.expected_wait_of_new(one.tier, one.terms, one.tenant, one.tokens, one.answers) or 0.0
    limit = max_wait if left is None else min(max_wait, left - one.service)
    predicted = refine_wait(wait * speed.wait_factor(one.tier), pool, one, limit=limit)
    # With more requests ahead, what a single one takes matters less.
    ahead = int(wait * (speed.throughput or 0.0) / speed.usual_tokens).bit_length() if wait else 0
    wait_kinds: Kinds = ((one.tier, one.tenant), (one.tier, None))
    kinds: Kinds = ((one.kind, one.tenant, ahead), (None, None, ahead))
    soonest_end = soonest_service = learnt = 0.0
    if left is not None:
        if speed.certainty >= CERTAIN:
            soonest_end, soonest_service = predicted + one.service, one.service
        else:
            soonest_end = learnt = pool.totals.soonest(kinds, predicted + one.service)
            soonest_service = pool.services.soonest(kinds, one.service)
    in_vain = is_in_vain(pool, wait_kinds, predicted, max_wait)
    forecast = Forecast(
        predicted, one.service, wait_kinds, kinds, in_vain, soonest_end, soonest_service, learnt, wait
    )
    try:
        check_in_time(forecast, max_wait=max_wait, left=left, backend=pool.name)
    except Overloaded as error:
        if error.code == "deadline_unreachable":
            pool.totals.doubt(kinds)
        raise
    return forecast


def is_in_vain(pool: Pool, kinds: Kinds, wait: float, max_wait: float) -> bool:
    """Whether such a wait is hardly over in time: single requests end when they are foreseen to and that is too late,
    or hardly any in such a place was served."""
    if pool.speed.certainty >= CERTAIN and wait > max_wait:
        return True
    part = wait / max_wait if max_wait else float(wait > 0)
    return pool.chances.is_hopeless(kinds, part) and not pool.chances.may_try()


def refine_wait(wait: float, pool: Pool, newcomer: Newcomer, *, limit: float) -> float:
    """``wait`` by simulation of the slots, weighted by how predictable requests are. All are seconds."""
    certainty, slots, service = pool.speed.certainty, pool.slots, newcomer.service
    decides = certainty and service and limit / FAR < wait < limit * FAR
    if (
        not decides
        or slots is None
        or newcomer.answers > slots
        or pool.max_tokens is not None
        or newcomer.terms.max_utilization < 1.0
    ):
        return wait
    now, queue = pool.clock(), pool.queue
    ends = [
        max(now, lease.granted_at + (lease.service or service))
        for lease in pool.leases
        if lease.granted_at is not None
        for _ in range(lease.unfinished)
    ]
    ends += repeat(now, slots - len(ends))
    same_tenant = queue.waiters_of(newcomer.tier, newcomer.tenant)
    own = [waiter.item.service or service for waiter in same_tenant for _ in range(waiter.item.answers)]
    # Of other tenants' requests it is known how many tokens come before, and so about how many requests.
    tokens = queue.tokens_ahead_of_new(newcomer.tier, newcomer.terms, newcomer.tenant, newcomer.tokens)
    tokens -= sum(waiter.tokens for waiter in same_tenant)
    others = round(tokens * len(queue) / queue.tokens) if tokens else 0
    usual = sum(own) / len(own) if own else service
    ahead = chain(repeat(usual, others), own)
    exact = slots_free_at(ends, ahead, answers=newcomer.answers, horizon=now + limit * FAR) - now
    return certainty * exact + (1.0 - certainty) * wait


def slots_free_at(ends: Iterable[float], ahead: Iterable[float], *, answers: int, horizon: float) -> float:
    """When ``answers`` slots are free at once, on the clock of ``ends``.

    ``ends`` has for each slot the time from which it is free; ``ahead`` has the seconds that each answer takes that is
    served before, in order. The simulation stops at ``horizon``.
    """
    slots = list(ends)
    heapq.heapify(slots)
    for seconds in ahead:
        if slots[0] > horizon:
            break
        heapq.heapreplace(slots, slots[0] + seconds)
    return heapq.nsmallest(answers, slots)[-1]


def check_in_time(forecast: Forecast, *, max_wait: float, left: float | None, backend: str) -> None:
    """Raise ``Overloaded`` for a request that would hardly wait no longer than ``max_wait``, or end within ``left``
    seconds.

    ``retry_after`` is the time until the wait would fit, if nothing else arrives.
    """
    if left is not None and left <= 0:
        raise Overloaded(
            f"The time for this request had passed before it reached backend '{backend}'. Allow it longer.",
            code="deadline_unreachable",
            retry_after=max(1.0, forecast.wait),
        )
    if left is not None and forecast.soonest_end > left:
        time_to_wait = max(0.0, left - forecast.service)
        raise Overloaded(
            f"Backend '{backend}' could not finish this request in the {left:.3g} s it has left: it would "
            f"wait about {forecast.wait:.3g} s and take about {forecast.service:.3g} s. Try again later, with a "
            "longer deadline, or with a smaller max_tokens.",
            code="deadline_unreachable",
            retry_after=max(1.0, forecast.wait - time_to_wait),
        )
    if forecast.in_vain:
        raise Overloaded(
            f"Backend '{backend}' is busy: this request would wait about {forecast.wait:.3g} s, and your tier waits "
            f"{max_wait:g} s at most. Try again later.",
            code="predicted_wait_too_long",
            retry_after=max(1.0, forecast.wait - max_wait),
        )
