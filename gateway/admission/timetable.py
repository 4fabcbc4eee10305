"""A wait as a backend's places come free, one by one: each request ends when it is foreseen to, and who is before takes
their places first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import chain, repeat

from gateway.admission.fair_queue import Terms
from gateway.admission.pool import Pool

FAR = 2.5
"""Times a limit, or a part of it, from which on it does not matter how exact a forecast is."""


def more_exactly(
    wait: float,
    pool: Pool,
    flow: tuple[str, Terms, str],
    cost: int,
    *,
    answers: int,
    service: float,
    limit: float,
) -> float:
    """``wait``, which the pool's speed means for a new request of ``flow`` (tier, terms and tenant), more exactly where
    that decides: close to ``limit``, and if the time that each request takes is foreseen. All are seconds.
    """
    tier, terms, tenant = flow
    certainty, places = pool.speeds.certainty, pool.places
    decides = certainty and service and limit / FAR < wait < limit * FAR
    if (
        not decides
        or places is None
        or answers > places
        or pool.tokens_limit is not None
        or terms.below < 1.0
    ):
        return wait
    now = pool.clock()
    ends = [
        max(now, place.granted + (place.service or service))
        for place in pool.held
        if place.granted is not None
        for _ in range(place.open)
    ]
    ends += repeat(now, places - len(ends))
    line = pool.queue.line(tier, tenant)
    own = [waiter.item.service or service for waiter in line for _ in range(waiter.item.answers)]
    # Of others' requests it is known how many tokens come before, and so about how many requests.
    tokens = pool.queue.cost_ahead_of_new(tier, terms, tenant, cost) - sum(waiter.cost for waiter in line)
    others = round(tokens * len(pool.queue) / pool.queue.cost) if tokens else 0
    usual = sum(own) / len(own) if own else service
    exact = free_at(ends, chain(repeat(usual, others), own), answers=answers, horizon=now + limit * FAR) - now
    return certainty * exact + (1.0 - certainty) * wait


def free_at(ends: Iterable[float], ahead: Iterable[float], *, answers: int, horizon: float) -> float:
    """When ``answers`` places are free at once, on the clock of ``ends``.

    ``ends`` has each place once, with the time from which it is free; ``ahead`` is how many seconds each answer takes
    that is served before, in their order. What is past ``horizon`` is not looked into: it is later, whatever comes.
    """
    places = list(ends)
    heapq.heapify(places)
    for seconds in ahead:
        if places[0] > horizon:
            break
        heapq.heapreplace(places, places[0] + seconds)
    return heapq.nsmallest(answers, places)[-1]
