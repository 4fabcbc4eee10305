"""The order in which a request passes the stages, outermost first. The lists here are the only place that says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.admission.pool import Pools
from gateway.caching.caches import Caches
from gateway.cascade.cascade import Judge
from gateway.errors import ContextTooLong, Forbidden, Internal, RateLimited, UnknownModel, Upstream
from gateway.fallback.health import HealthRegistry
from gateway.guards.actions.background import BackgroundScans
from gateway.guards.actions.guards import Guards
from gateway.metering.bill import Bill
from gateway.observe.accounting import Accounting
from gateway.observe.metrics import Metrics
from gateway.observe.receipts import Receipts
from gateway.quota.quotas import Quotas
from gateway.routing.router import Router
from gateway.routing.shadow import Shadows
from gateway.stages.cache import cache
from gateway.stages.cascade import cascade
from gateway.stages.fallback import fallback
from gateway.stages.guard_input import guard_input
from gateway.stages.guard_output import guard_output
from gateway.stages.meter import meter
from gateway.stages.queue import queue
from gateway.stages.quota import quota
from gateway.stages.record import record
from gateway.stages.route import route
from gateway.stages.shadow import shadow
from gateway.stages.trace import trace
from gateway.types import Backend, Call, Chunk, Chunks, CountsTokens, Handler, Json, Stage


@dataclass(frozen=True, slots=True)
class Answering:
    """What it takes to get an answer from a model."""

    backends: Mapping[str, Backend]
    """Those that are enabled, by name."""
    router: Router
    health: HealthRegistry
    pools: Pools
    metrics: Metrics

    def handler(self) -> Handler:
        """From the choice of a backend on; the judges of guards ask here, past quotas, guards and caches."""
        stages = [
            route(self.router),
            fallback(self.health, self.metrics),
            queue(self.pools, self.metrics),
        ]
        return fold(stages, dispatch(self.backends))


@dataclass(frozen=True, slots=True)
class Entrance:
    """What every request passes, whatever it asks for."""

    metrics: Metrics
    receipts: Receipts
    accounting: Accounting
    quotas: Quotas

    def handler(self, inner: Handler) -> Handler:
        return record(trace(self.receipts), meter(self.metrics), quota(self.quotas, self.accounting))(inner)


class Beside:
    """What is sent to models beside a request, as copies for shadow models and questions to judges are: it is held
    against its payer's limits on tokens and dollars, and not recorded as a request.
    """

    def __init__(self, quotas: Quotas, accounting: Accounting) -> None:
        self._quotas = quotas
        self._accounting = accounting

    def stage(self, following: Handler) -> Handler:
        def behind(call: Call) -> Chunks:
            return following(_swapped(call))

        account = record(quota(self._quotas, self))(behind)
        return lambda call: account(_swapped(call)) if call.payer is not None else following(call)

    def record(self, call: Call, bill: Bill, status: int, error: str | None = None) -> None:
        self._accounting.record_charges(call, bill.charges)


def _swapped(call: Call) -> Call:
    """Only quotas and accounting know who pays; to all others it is its caller's."""
    return replace(call, principal=call.payer or call.principal, payer=call.principal)


@dataclass(frozen=True, slots=True)
class Content:
    """What looks at questions and answers. Caches see masked questions, and keep only what the guards let through."""

    guards: Guards
    flags: BackgroundScans
    caches: Caches
    judge: Judge
    shadows: Shadows
    beside: Beside
    metrics: Metrics

    def handler(self, inner: Handler) -> Handler:
        steps = cascade(self.judge)

        def copies(following: Handler) -> Handler:
            # A shadow model may be a cascade, as the model that a caller asks may be.
            return self.beside.stage(steps(following))

        stages = [
            guard_input(self.guards, self.flags, self.metrics),
            cache(self.caches, self.metrics),
            guard_output(self.guards, self.flags, self.metrics),
            steps,
            shadow(self.shadows, self.metrics, copies),
        ]
        return fold(stages, inner)


@dataclass(frozen=True, slots=True)
class Counting:
    """What it takes to count a prompt's tokens: input guards, as the provider sees what it counts, and a route."""

    guards: Guards
    flags: BackgroundScans
    router: Router
    backends: Mapping[str, Backend]
    metrics: Metrics

    def handler(self) -> Handler:
        return fold([guard_input(self.guards, self.flags, self.metrics)], self._count)

    async def _count(self, call: Call) -> Chunks:
        """One chunk, with the provider's answer as its envelope; without one, nobody counts but the gateway."""
        yield Chunk(envelope=await self._told(call) or {})

    async def _told(self, call: Call) -> dict[str, Json] | None:
        try:
            first = self.router.plan(call)[0]
            backend = self.backends[first.target.backend]
            if not isinstance(backend, CountsTokens):
                return None
            call.candidate = first
            return await backend.count_tokens(call, first.target)
        except (ContextTooLong, Forbidden, UnknownModel, Upstream, RateLimited):
            return None


def whole(entrance: Entrance, content: Content, answering: Handler) -> Handler:
    """What a request for an answer passes, from its arrival to a model and back."""
    return entrance.handler(content.handler(answering))


def fold(stages: list[Stage], handler: Handler) -> Handler:
    """``stages`` around ``handler``, the first outermost."""
    for stage in reversed(stages):
        handler = stage(handler)
    return handler


def dispatch(backends: Mapping[str, Backend]) -> Handler:
    """The innermost handler: the target's own backend."""

    def handle(call: Call) -> Chunks:
        if call.target is None:
            raise Internal("The request reached the backends without a target.")
        return backends[call.target.backend].stream(call, call.target)

    return handle
