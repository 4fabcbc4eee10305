"""Admission of one call to one backend: refused at once, or given a slot, now or when its turn comes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from gateway.admission.fair_queue import QueueTerms
from gateway.admission.fair_shares import Flow
from gateway.admission.pool import Pool
from gateway.admission.pools import Pools
from gateway.admission.shedding import TierRules, shed, shed_shadow
from gateway.admission.slot_lease import SlotLease
from gateway.admission.wait_predictor import Forecast, Newcomer, check_wait
from gateway.errors import Internal, Overloaded, TooManyAnswers
from gateway.policy.schema import Tier
from gateway.prefix_sharing import alias, sharing
from gateway.types import BatchLine, Call, Chunk, Chunks, Json

_SHORT = 256
"""Tokens of a prompt below which its length matters little."""
_FIRST_TOKEN = 50
"""Tokens that take about as long as the first one of an answer."""
_SLACK = 0.25
"""Seconds of latency that are no sign of a queue at the backend: the network's, and this worker's own."""
LINE_PRIORITY = -1
"""Of lines of batches, at the engine: tiers have 0 and more."""
IDLE_WAIT = 30.0
"""Seconds that a line of a batch waits for idle capacity at a time. What it holds of its caller's limits is free again
after that, and it comes anew."""
UNKNOWN = Forecast(0.0, 0.0)
UNLIMITED = QueueTerms()
"""For a backend without limits."""


@dataclass(slots=True, eq=False)
class Admission:
    """A call admitted to a pool, with its lease or its position in the queue; ``lease`` is to be released."""

    pool: Pool
    lease: SlotLease
    arrived: float
    position: int
    """In the queue at first; 0 where it did not wait."""
    saturation: float
    """Before it came."""
    expires: float
    """On the pool's clock: a slot after that would come too late."""
    expected_wait: float
    """By the pool's throughput alone, in seconds; 0 where it is not known."""
    teaches: bool = True
    """Something is learned from the answer."""

    @property
    def waited(self) -> float:
        granted = self.lease.granted_at
        return (self.pool.clock() if granted is None else granted) - self.arrived

    async def wait(self, call: Call, *, quiet: float, interval: float) -> Chunks:
        """Until the lease is granted. A streaming client gets a comment with its position after ``quiet`` seconds,
        and every ``interval`` from then on. Raises ``Overloaded`` when the time is up.
        """
        pause = quiet if call.request.stream else float("inf")
        while True:
            left = self.expires - self.pool.clock()
            granted = await self.lease.wait(min(left, pause))
            if granted or left <= pause:
                break
            wait = self.lease.expected_wait
            seconds = "" if wait is None else f" wait={wait:.1f}s"
            yield Chunk(comment=f"queued position={self.lease.position}{seconds}")
            pause = interval
        self.learn_wait(call.principal.tier)
        if not granted:
            raise self._timeout(call)

    def learn_wait(self, tier: str) -> None:
        """It waits no longer."""
        self.pool.speed.observe_wait(tier, self.expected_wait, self.waited)

    def first_token(self, call: Call) -> float:
        """The answer begins now. Returns when that is, on the pool's clock."""
        now = self.pool.clock()
        if self.teaches and call.request.stream and self.lease.granted_at is not None:
            seconds, kind = now - self.lease.granted_at, _kind(call)
            self.pool.on_first_token(self.lease, kind, seconds + _SLACK, quick=seconds <= _SLACK)
            self.pool.lines.share.learn(kind, seconds, beside_lines=self.lease.beside_lines)
        return now

    def completed(self, call: Call, first_token: float | None, completion: int) -> None:
        """The answer of ``completion`` tokens is complete, its first token at ``first_token`` on the pool's clock."""
        lease, pool = self.lease, self.pool
        granted, speed = lease.granted_at, pool.speed
        if granted is None or not self.teaches:
            return
        seconds = pool.clock() - granted
        expected = lease.service
        if expected is None and (estimate := call.estimated()) is not None:
            expected = speed.expected_service(estimate)
        if expected is not None:
            speed.observe_service(expected, seconds)
        streamed = call.request.stream
        # An answer that is not streamed comes in one piece: its first token was not seen.
        seen = first_token - granted if streamed and first_token is not None else None
        share = pool.share(lease.tokens, lease.answers)
        speed.observe(
            tokens=lease.tokens, share=share, seconds=seconds, first_token=seen, completion=completion
        )
        if not streamed:
            per_token = (seconds + _SLACK) / (completion + _FIRST_TOKEN)
            pool.on_first_token(lease, _kind(call), per_token, quick=seconds <= _SLACK)

    def _timeout(self, call: Call) -> Overloaded:
        waited, tier, lease = self.waited, call.principal.tier, self.lease
        wait = self.pool.expected_wait_of_new(
            tier, lease.terms, call.principal.tenant, lease.tokens, lease.answers
        )
        if wait is not None:
            wait *= self.pool.speed.wait_factor(tier)
        return Overloaded(
            f"Backend '{self.pool.name}' had no free slot for this request within {waited:.3g} s. Try again later.",
            code="queue_timeout",
            retry_after=max(1.0, waited if wait is None else wait - waited),
        )


@dataclass(slots=True, eq=False)
class ForeseenAdmission(Admission):
    """Of a request that was queued, or has a deadline: what becomes of it teaches how good forecasts are."""

    forecast: Forecast = UNKNOWN

    def learn_wait(self, tier: str) -> None:
        Admission.learn_wait(self, tier)
        longest = self.expires - self.arrived
        if longest > 0:
            self.pool.chances.learn(
                self.forecast.wait_kinds, self.forecast.wait / longest, self.lease.is_granted
            )

    def completed(self, call: Call, first_token: float | None, completion: int) -> None:
        Admission.completed(self, call, first_token, completion)
        granted, forecast, pool = self.lease.granted_at, self.forecast, self.pool
        if granted is None or not forecast.kinds or not forecast.service:
            return
        now = pool.clock()
        pool.services.learn(forecast.kinds, forecast.service, now - granted)
        whole, took = forecast.wait + forecast.service, now - self.arrived
        pool.totals.learn(forecast.kinds, whole, took, soonest=forecast.learnt)


def admit(call: Call, pools: Pools, rules: TierRules) -> Admission:
    """Take a slot of the call's candidate, or a position in its queue. Raises ``Overloaded`` where the wait would be
    too long, ``TooManyAnswers`` for more answers than the backend has slots.

    A call that comes here because it failed or was not wanted elsewhere is not shed: it has been moved once.
    """
    if call.candidate is None:
        raise Internal("The request reached the queue without a target.")
    name, tenant = call.principal.tier, call.principal.tenant
    tier, rule, tier_terms = rules.of(call.policy, name)
    pool = pools.of(call.candidate.target.backend)
    answers = call.request.slots
    if answers != 1:
        check_size(call, answers)
    now, due = pool.clock(), call.deadline if tier.sla is None else due_at(call, tier)
    if due is None and tier_terms.max_utilization >= 1.0 and not call.shadow and call.line is None:
        quiet = pool.quiet_saturation(answers)
        if quiet is not None:
            if rule.action == "shed" and call.candidate.why == "primary":
                shed(rule, pool, quiet)
            expires = now + tier.max_wait
            if not pool.wants_lesson():
                lease = pool.acquire_at_once(name, tier_terms, tenant, pool.speed.usual_tokens, answers)
                return Admission(pool, lease, now, 0, quiet, expires, 0.0, teaches=False)
            tokens, known = _expected(call, pool, due)
            lease = pool.acquire_at_once(name, tier_terms, tenant, tokens, answers)
            lease.service = known
            return Admission(pool, lease, now, 0, quiet, expires, 0.0)
    tokens, known = _expected(call, pool, due)
    if call.line is not None:
        return _admit_line(call.line, tenant, pool, tokens, answers)
    service = known or 0.0
    left = None if due is None else due - now
    terms, saturation, flow = UNLIMITED, 0.0, None
    if pool.limited or pool.speed.engine is not None:
        terms = tier_terms
        flow = Flow(name, tenant, terms.weight)
        saturation = pool.saturation_for(flow)
        if call.shadow:
            shed_shadow(pool)
        elif call.candidate.why == "primary":
            shed(rule, pool, saturation)
    room = pool.has_capacity(tokens, terms, answers, flow)
    if not room and pool.queue.is_full(name, tenant, pools.worker_share(tier.max_queue) or 1):
        raise queue_full(pool)
    if left is not None or not room:
        if left is not None and 0 < left < service and not pool.load and pool.speed.may_probe():
            service = 0.0
        kind = None if left is None else _kind(call)
        newcomer = Newcomer(name, terms, tenant, tokens, answers, service, kind)
        forecast = check_wait(pool, newcomer, max_wait=tier.max_wait, left=left)
        lease = pool.acquire(name, terms, tenant, tokens, answers)
        lease.service = known
        end = now + tier.max_wait
        expires = end if due is None else min(end, due - forecast.soonest_service)
        position, by_throughput = lease.position, forecast.by_throughput
        return ForeseenAdmission(
            pool, lease, now, position, saturation, expires, by_throughput, forecast=forecast
        )
    lease = pool.acquire(name, terms, tenant, tokens, answers)
    lease.service = known
    return Admission(pool, lease, now, lease.position, saturation, now + tier.max_wait, 0.0)


def _expected(call: Call, pool: Pool, due: float | None) -> tuple[int, float | None]:
    """Tokens of prompt and answer, and the seconds that they take; None where nothing is known or hangs on it."""
    estimate = call.estimated()
    if estimate is None:
        return 1, None
    known = pool.speed.expected_service(estimate) if due is not None or pool.limited else None
    return max(1, estimate.prompt + estimate.expected), known


def _admit_line(line: BatchLine, tenant: str, pool: Pool, tokens: int, answers: int) -> Admission:
    """A place on idle capacity, now or while it waits. It waits outside the queue: for all others it is not there."""
    now, saturation = pool.clock(), pool.saturation
    lease = pool.acquire_idle(
        tenant, tokens, answers, max_utilization=line.max_utilization, reclaim=line.reclaim
    )
    return Admission(pool, lease, now, lease.position, saturation, now + IDLE_WAIT, 0.0)


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


def engine_headers(call: Call, now: float) -> dict[str, str]:
    """Headers with the call's priority, weight and deadline, which the bundled engine understands."""
    here = call.candidate
    if here is None:
        raise Internal("The request reached the engine without a target.")
    tier = call.policy.tier(call.principal.tier)
    headers = {
        "x-tollgate-priority": str(tier.priority if call.line is None else LINE_PRIORITY),
        "x-tollgate-weight": f"{tier.weight:g}",
        "x-tollgate-tenant": alias(call.principal.tenant),
    }
    if (shared := sharing(call.policy, here.model, call.request)) != "none":
        headers["x-tollgate-prefix-sharing"] = shared
    due = due_at(call, tier)
    if due is not None:
        headers["x-tollgate-deadline"] = f"{max(0.0, due - now):.3f}"
    return headers


def _kind(call: Call) -> Hashable:
    """Requests of one kind take equally long at an idle backend."""
    target = call.candidate.target.model if call.candidate is not None else ""
    estimate = call.estimated()
    size = 0 if estimate is None else (estimate.prompt // _SHORT).bit_length()
    params = call.request.params
    return target, call.request.stream, size, _effort(params) if params else None


def _effort(params: Mapping[str, Json]) -> Hashable:
    """How long a model may think before it answers."""
    match params.get("thinking"):
        case {"budget_tokens": int(budget)}:
            return budget.bit_length()
        case {"type": str(kind)}:
            return kind
    effort = params.get("reasoning_effort")
    return effort if isinstance(effort, str) else None


def queue_full(pool: Pool) -> Overloaded:
    return Overloaded(
        f"Backend '{pool.name}' has a full queue for your tier. Try again later.",
        code="queue_full",
        retry_after=max(1.0, pool.drain_time(1.0) or 0.0),
    )
