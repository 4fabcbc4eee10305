"""The decision about one call at one backend: turned away at once, or given a place, now or when its turn comes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from gateway.admission.fair_queue import Terms
from gateway.admission.pool import Place, Pool, Pools
from gateway.admission.predictor import Forecast, check_in_time
from gateway.admission.shedding import Standings, shed, spare
from gateway.admission.timetable import more_exactly
from gateway.errors import Internal, Overloaded, TooManyAnswers
from gateway.policy.schema import EngineBackend, Tier
from gateway.prefixes import alias, sharing
from gateway.types import Call, Chunk, Chunks

_SHORT = 256
"""Tokens of a prompt below which its length matters little."""
_AS_MANY = 50
"""Tokens that take about as long as it takes a whole answer to begin."""
_SLACK = 0.25
"""Seconds that are no line at a backend worth speaking of: the network's, and this worker's own."""
ALWAYS = Terms()
"""For a backend that knows no limit."""


@dataclass(slots=True, eq=False)
class Entry:
    """A call that was let in to a pool, with its place or its claim to one; ``place`` is to be released."""

    pool: Pool
    place: Place
    arrived: float
    position: int
    """Where it had to stand at first; 0 is not at all."""
    saturation: float
    """Before it came."""
    until: float
    """Past it, on the pool's clock, the place would come too late."""
    expected: float
    """The wait that the pool's speed alone would mean, in seconds; 0 where it is not known."""

    @property
    def waited(self) -> float:
        granted = self.place.granted
        return (self.pool.clock() if granted is None else granted) - self.arrived

    def begins(self, call: Call) -> float:
        """The answer begins now. Gives when that is, on the pool's clock."""
        now = self.pool.clock()
        if call.request.stream and self.place.granted is not None:
            self.pool.answered(self.place, self._kind(call), now - self.place.granted + _SLACK)
        return now

    def _kind(self, call: Call) -> Hashable:
        """Of requests that take alike where nothing is in their way."""
        target = call.target.model if call.target is not None else ""
        size = 0 if call.demand is None else (call.demand.prompt // _SHORT).bit_length()
        return target, call.request.stream, size

    def learn(self, call: Call, first_token: float | None, completion: int) -> None:
        """The call has come to its end now, its first token at ``first_token`` on the pool's clock."""
        if self.place.granted is None:
            return
        # A whole answer comes at once: when its first token was there, nobody saw.
        seen = first_token is not None and call.request.stream
        expected = self.place.service
        if expected is None and call.demand is not None:
            expected = self.pool.speeds.expected_service(call.demand)
        if expected is not None:
            self.pool.speeds.learn_service(expected, self.pool.clock() - self.place.granted)
        self.pool.speeds.learn(
            cost=self.place.cost,
            share=self.place.share,
            seconds=self.pool.clock() - self.place.granted,
            first_token=first_token - self.place.granted if seen and first_token is not None else None,
            completion=completion,
        )
        if not call.request.stream:
            seconds = (self.pool.clock() - self.place.granted + _SLACK) / (completion + _AS_MANY)
            self.pool.answered(self.place, self._kind(call), seconds)

    def late(self, call: Call) -> Overloaded:
        """The error for a call whose place did not come in time."""
        waited, tier = self.waited, call.principal.tier
        wait = self.pool.expected_wait_of_new(
            tier, self.place.terms, call.principal.tenant, self.place.cost, self.place.answers
        )
        if wait is not None:
            wait *= self.pool.speeds.delay(tier)
        return Overloaded(
            f"Backend '{self.pool.name}' had no place for this request within {waited:.3g} s. Try again later.",
            code="queue_timeout",
            retry_after=max(1.0, waited if wait is None else wait - waited),
        )


def enter(call: Call, pools: Pools, standings: Standings) -> Entry:
    """Stand in line at the call's candidate. Raises ``Overloaded`` where that is no use, ``TooManyAnswers`` for more
    than all of its places.

    A call that comes here because it failed or was not wanted elsewhere is not shed: it has been moved once.
    """
    if call.candidate is None:
        raise Internal("The request reached the queue without a target.")
    name = call.principal.tier
    tier = call.policy.tier(name)
    pool = pools.of(call.candidate.target.backend)
    demand = call.demand
    cost = 1 if demand is None else max(1, demand.prompt + demand.expected)
    answers = call.request.answers
    check_size(call, answers)
    now = pool.clock()
    due = due_at(call, tier)
    stands, saturation, wait, known = ALWAYS, 0.0, 0.0, None
    if demand is not None and (due is not None or pool.limited):
        known = pool.speeds.expected_service(demand)
    service = known or 0.0
    if pool.limited or pool.speeds.engine is not None:
        rule, stands = standings.of(call.policy, name)
        saturation = pool.saturation
        if call.shadow:
            spare(pool)
        elif call.candidate.why == "primary":
            shed(rule, pool)
    if due is not None or not pool.has_room(cost, stands, answers):
        if pool.queue.length(name) >= (pools.part(tier.max_queue) or 1):
            raise _full(pool)
        wait = pool.expected_wait_of_new(name, stands, call.principal.tenant, cost, answers) or 0.0
        left = None if due is None else due - now
        if left is not None and 0 < left < service and not pool.load and pool.speeds.may_probe():
            service = 0.0
        limit = tier.max_wait if left is None else min(tier.max_wait, left - service)
        flow = name, stands, call.principal.tenant
        foreseen = more_exactly(
            *(wait * pool.speeds.delay(name), pool, flow, cost), answers=answers, service=service, limit=limit
        )
        check_in_time(Forecast(foreseen, service), max_wait=tier.max_wait, left=left, backend=pool.name)
    place = pool.take(name, stands, call.principal.tenant, cost, answers)
    place.service = known
    until = now + tier.max_wait if due is None else min(now + tier.max_wait, due - service)
    return Entry(pool, place, now, place.position, saturation, until, wait)


def check_size(call: Call, answers: int) -> None:
    """Raises ``TooManyAnswers`` for a request that would never fit."""
    if answers == 1 or call.candidate is None:
        return
    name = call.candidate.target.backend
    most = call.policy.backends[name].max_concurrency if name in call.policy.backends else None
    if most is None or answers <= most:
        return
    request = call.request
    param = "prompt" if request.n == 1 and request.params.get("best_of") in (None, 1) else "n"
    raise TooManyAnswers(
        f"This request asks for {answers:,} answers at once (prompts times n or best_of), and backend '{name}' "
        f"computes {most:,} at most. Ask for fewer, in several requests.",
        param=param,
    )


def due_at(call: Call, tier: Tier) -> float | None:
    """When the answer must be complete, for the caller or the tier, on ``call.started``'s clock."""
    if tier.sla is None:
        return call.deadline
    promised = call.started + tier.sla
    return promised if call.deadline is None else min(promised, call.deadline)


def hints(call: Call, now: float) -> dict[str, str]:
    """Headers that tell the bundled engine how to treat the call; nothing for any other backend, whose business it
    is not.
    """
    if call.target is None or not isinstance(call.policy.backends.get(call.target.backend), EngineBackend):
        return {}
    tier = call.policy.tier(call.principal.tier)
    told = {
        "x-tollgate-priority": str(tier.priority),
        "x-tollgate-weight": f"{tier.weight:g}",
        "x-tollgate-tenant": alias(call.principal.tenant),
    }
    model = call.candidate.model if call.candidate is not None else call.model
    if (shared := sharing(call.policy, model, call.request)) != "none":
        told["x-tollgate-prefix-sharing"] = shared
    due = due_at(call, tier)
    if due is not None:
        told["x-tollgate-deadline"] = f"{max(0.0, due - now):.3f}"
    return told


async def wait(call: Call, entry: Entry, *, quiet: float, interval: float) -> Chunks:
    """Until the place is given. A streaming client is told after ``quiet`` seconds, and every ``interval`` from then
    on, where it stands. Raises ``Overloaded`` when the time is up.
    """
    pause = quiet if call.request.stream else float("inf")
    speeds, tier = entry.pool.speeds, call.principal.tier
    while True:
        left = entry.until - entry.pool.clock()
        if await entry.place.wait(min(left, pause)):
            speeds.learn_wait(tier, entry.expected, entry.waited)
            return
        if left <= pause:
            speeds.learn_wait(tier, entry.expected, entry.waited)
            raise entry.late(call)
        expected = entry.place.expected_wait
        told = "" if expected is None else f" wait={expected:.1f}s"
        yield Chunk(comment=f"queued position={entry.place.position}{told}")
        pause = interval


def _full(pool: Pool) -> Overloaded:
    return Overloaded(
        f"Backend '{pool.name}' has as many requests of your tier waiting as may wait. Try again later.",
        code="queue_full",
        retry_after=max(1.0, pool.drain_time(1.0) or 0.0),
    )
