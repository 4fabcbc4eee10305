"""How often does the gateway's queue refuse a request that would have been in time? Recorded arrivals, in virtual time.

    python -m benchmarks.queue_deadlines [--requests 4000] [--load 1.2] [--json FILE]

The traces are those of ``benchmarks.replay``, each before a server of 32 places, where a request takes 0.1 s, 25 µs for
each token of its prompt and 20 ms for each of its answer, sped up or slowed down to ``--load`` times what the places
bear on average. How long an answer will be only the trace knows: the gateway expects the mean of those before. Either
each request has a deadline between 1 and 60 s away, drawn at random (deadline), or none, and a tier that waits for 10 s
(max_wait). One in four of those that would be refused is let in after all, to see what becomes of it.

refused   part of all requests that is refused when it comes
wrong     part of those let in after all that was in time: done by its deadline, or given a place within the wait
late      part of the others that was not

Each runs twice: by the mean, as the gateway refused before, where that was too late; and by the learnt distribution of
what waits and requests were relative to what was predicted, where that leaves less than 5 % to be in time. The second
table is the calibration: of the requests with a deadline that were finished, the part that was done by the time by
which 5, 10, 25, 50, 75, 90 % were predicted to be.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.deadlines import LEVELS, outcome, print_calibration
from benchmarks.replay import DATA, Arrival, made_up, traces
from gateway.admission import gate
from gateway.admission.gate import Admission, ForeseenAdmission
from gateway.admission.pools import Pools
from gateway.admission.prediction_errors import Kinds, PredictionErrors
from gateway.admission.shedding import TierRules
from gateway.admission.wait_chances import WaitChances
from gateway.errors import Overloaded
from gateway.policy.schema import Policy
from gateway.types import Call, Candidate, ChatRequest, Principal, Receipt, TokenEstimate

PLACES, MAX_WAIT = 32, 10.0
FIRST, PREFILL, TOKEN = 0.1, 25e-6, 0.02
KNOWN = 200
"""Requests that are not counted: nothing is known yet."""


class Mean(PredictionErrors):
    def soonest(self, kinds: Kinds, predicted: float, chance: float | None = None) -> float:
        return predicted


class Expected(WaitChances):
    def is_hopeless(self, kinds: Kinds, part: float) -> bool:
        return part > 1.0

    def may_try(self) -> bool:
        return False


def a_policy(limit: str) -> Policy:
    return Policy.model_validate(
        {
            "version": 1,
            "backends": {
                "up": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "max_concurrency": PLACES}
            },
            "models": {"m": {"targets": [{"backend": "up", "model": "m"}]}},
            "tiers": {
                "pro": {"max_wait": f"{MAX_WAIT}s" if limit == "max_wait" else "10m", "max_queue": 10**6}
            },
        }
    )


def takes(arrival: Arrival) -> float:
    return FIRST + PREFILL * arrival.length + TOKEN * arrival.generate


@dataclass(eq=False)
class Asked:
    number: int
    arrival: Arrival
    call: Call
    admission: Admission
    due: float | None
    let_in: bool = False
    """Though it was refused."""
    started: bool = False
    predicted: list[float] = field(default_factory=list)
    """When it ends, by ``LEVELS``."""


class Run:
    def __init__(self, arrivals: list[Arrival], limit: str, load: float, *, learnt: bool) -> None:
        self.policy = a_policy(limit)
        self._limit = limit
        self._now = 0.0
        self._pools, self._rules = Pools(clock=lambda: self._now), TierRules()
        self._pools.update(self.policy)
        self._pool = self._pools.of("up")
        if not learnt:
            self._pool.chances, self._pool.services, self._pool.totals = Expected(), Mean(), Mean()
        self._learnt = learnt
        self._events: list[tuple[float, int, str, object]] = []
        self._order = count()
        span = arrivals[-1].at - arrivals[0].at
        # Which is so fast that the work of all of them takes ``load`` times as long as their coming.
        pace = sum(map(takes, arrivals)) / PLACES / span / load
        for number, arrival in enumerate(arrivals):
            self._later((arrival.at - arrivals[0].at) * pace, "comes", (number, arrival))
        self._length, self._finished = 0.0, 0
        self._waiting: dict[int, Asked] = {}
        self.counts = dict.fromkeys(("asked", "refused", "let_in", "wrong", "admitted", "late"), 0)
        self.done_by = dict.fromkeys(LEVELS, 0)
        self.predictions = 0

    def run(self) -> None:
        while self._events:
            self._now, _, what, who = heapq.heappop(self._events)
            if isinstance(who, tuple):
                self._comes(*who)
            elif isinstance(who, Asked) and what == "ends":
                self._ends(who)
            elif isinstance(who, Asked) and who.number in self._waiting:
                self._gives_up(who)
            for one in [one for one in self._waiting.values() if one.admission.lease.is_granted]:
                del self._waiting[one.number]
                self._starts(one)

    def _later(self, at: float, what: str, who: object) -> None:
        heapq.heappush(self._events, (at, next(self._order), what, who))

    def _comes(self, number: int, arrival: Arrival) -> None:
        chance = Random(number)
        call, due = self._call(arrival), None
        if self._limit == "deadline":
            due = call.deadline = self._now + math.exp(chance.uniform(0.0, math.log(60)))
        counted = number >= KNOWN
        self.counts["asked"] += counted
        let_in = False
        try:
            admission = gate.admit(call, self._pools, self._rules)
            self.counts["admitted"] += counted
        except Overloaded:
            self.counts["refused"] += counted
            if chance.random() >= 0.25:
                return
            self.counts["let_in"] += counted
            let_in, tokens = True, arrival.length + max(1, round(self._length))
            lease = self._pool.acquire("pro", gate.UNLIMITED, "t", tokens)
            until = self._now + MAX_WAIT if due is None else due
            admission = Admission(self._pool, lease, self._now, lease.position, 0.0, until, 0.0)
        one = Asked(number, arrival, call, admission, due, let_in)
        if due is not None and isinstance(admission, ForeseenAdmission):
            forecast, totals = admission.forecast, self._pool.totals
            whole = forecast.wait + forecast.service
            soonest = [forecast.soonest_end]
            soonest += [totals.soonest(forecast.kinds, whole, level) for level in LEVELS[1:]]
            one.predicted = [self._now + seconds for seconds in soonest] if all(soonest) else []
        if admission.lease.is_granted:
            self._starts(one)
        else:
            self._waiting[number] = one
            self._later(admission.expires, "is late", one)

    def _starts(self, one: Asked) -> None:
        if not one.let_in and one.admission.position:
            one.admission.learn_wait("pro")
        if one.due is None:
            self._met(one, self._now - one.admission.arrived <= MAX_WAIT)
        self._later(self._now + takes(one.arrival), "ends", one)

    def _ends(self, one: Asked) -> None:
        generated = one.arrival.generate
        self._finished = min(self._finished + 1, 64)
        self._length += (generated - self._length) / self._finished
        if one.due is not None:
            self._met(one, self._now <= one.due)
        if one.predicted and one.number >= KNOWN:
            self.predictions += 1
            for level, seconds in zip(LEVELS, one.predicted, strict=True):
                self.done_by[level] += self._now <= seconds
        one.admission.completed(one.call, self._now - TOKEN * generated, generated + 1)
        one.admission.lease.correct_tokens(one.arrival.length + generated)
        one.admission.lease.release()

    def _gives_up(self, one: Asked) -> None:
        del self._waiting[one.number]
        self._met(one, False)
        if not one.let_in:
            one.admission.learn_wait("pro")
        one.admission.lease.release()

    def _met(self, one: Asked, in_time: bool) -> None:
        if one.number < KNOWN:
            return
        if one.let_in:
            self.counts["wrong"] += in_time
        else:
            self.counts["late"] += not in_time

    def _call(self, arrival: Arrival) -> Call:
        request = ChatRequest("m", ({"role": "user", "content": "Hi"},), stream=True)
        principal = Principal("k", "t", tier="pro")
        call = Call("r", principal, request, self.policy, Receipt("r", 0.0), self._now)
        expected = max(1, round(self._length))
        call.estimate = TokenEstimate(arrival.length, expected, expected)
        model = self.policy.models["m"]
        call.candidate = Candidate("m", model.targets[0], model.timeouts)
        return call


def measure(name: str, arrivals: list[Arrival], limit: str, load: float, learnt: bool) -> dict[str, Any]:
    one = Run(arrivals, limit, load, learnt=learnt)
    one.run()
    return {"trace": name, "limit": limit, **outcome(one, learnt=learnt)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=4000, help="of each trace")
    parser.add_argument("--load", type=float, default=1.2, help="arrivals, relative to what the places bear")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = traces(given.data, given.requests)
    if not found:
        print(f"No traces in {given.data}: a made-up one is replayed.\n")
        found = {"made up": made_up(given.requests)}
    rows = []
    print(
        "| trace | limit | refused by | refused | wrong (of tried) | late |\n|---|---|---|--:|--:|--:|",
        flush=True,
    )
    for name, arrivals in found.items():
        for limit in ("deadline", "max_wait"):
            for learnt in (False, True):
                row = measure(name, arrivals, limit, given.load, learnt)
                print(
                    "| {trace} | {limit} | {refusal} | {refused:.1%} | {wrong} ({tried}) | {late:.1%} |".format(
                        **row
                    ),
                    flush=True,
                )
                rows.append(row)
    print_calibration([row for row in rows if (row["refusal"], row["limit"]) == ("learnt", "deadline")])
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
