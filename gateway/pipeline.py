"""The order in which a request passes the stages, outermost first: ``Pipeline``'s, then the loop over candidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from gateway.admission.phases import headers_for
from gateway.admission.pools import Pools
from gateway.admission.queue import Queue
from gateway.backends.dispatch import dispatch, dispatch_whole
from gateway.caching.caches import Caches
from gateway.cascade.cascade import ComplexityScorer
from gateway.errors import (
    ContextTooLong,
    Forbidden,
    RateLimited,
    Upstream,
)
from gateway.experiments.experiments import Experiments
from gateway.fallback.health import HealthRegistry
from gateway.fallback.hop import Hops
from gateway.guards.guards import Guards
from gateway.guards.scans.background import BackgroundScans
from gateway.metering.bill import Bill
from gateway.observe.accounting import Accounting, RequestAccounting
from gateway.observe.ended import Ended
from gateway.observe.metrics import Metrics
from gateway.observe.receipts import Receipts
from gateway.observe.telemetry.request_spans import DECIDED
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.policy.schema import Policy
from gateway.quota.quotas import Quotas
from gateway.routing.router import Router
from gateway.routing.scored import Scored
from gateway.routing.shadow import Shadows
from gateway.stages.cache import cache, without_caches
from gateway.stages.cascade import cascade
from gateway.stages.experiment import experiment, experiment_whole
from gateway.stages.guard_input import guard_input
from gateway.stages.guard_output import guard_output
from gateway.stages.keep_answer import KeepsAnswers, keep_answer, keep_whole
from gateway.stages.prompt_tokens import AnswersWhole
from gateway.stages.record import Observers, record, record_whole
from gateway.stages.shadow import Compares, shadow
from gateway.stages.spans import attempt, content, entering
from gateway.stages.truncate import truncate
from gateway.types import (
    Backend,
    Call,
    Chunk,
    Chunks,
    CountsTokens,
    Handler,
    Json,
    Stage,
    WholeHandler,
)
from gateway.upstream_loop import UpstreamLoop

_IN_NO_WHOLE = frozenset({"guard_input", "guard_output", "cascade", "shadow"})
"""Stages that know streams alone. They are left out where the policy has no use for them."""


class AroundSending(Protocol):
    """What an adapter needs done where a call is sent."""

    def stream(self, send: Handler, /) -> Handler: ...
    def whole(self, send: WholeHandler, /) -> WholeHandler: ...


@dataclass(frozen=True, slots=True)
class UpstreamPipeline:
    """From the choice of a backend on. The judges of guards enter here, past quotas, guards and caches."""

    policy: Policy
    backends: Mapping[str, Backend]
    """Those that are enabled, by name."""
    router: Router
    health: HealthRegistry
    pools: Pools
    metrics: Metrics
    telemetry: Telemetry | None = None
    scored: Scored | None = None
    """Where the policy has models with ``select: score``."""
    positions_every: float = 1.0
    """Seconds between two of the positions that a waiting stream is told."""

    def handler(self, around: AroundSending | None = None) -> UpstreamLoop:
        """``around``: of the adapter that all of its calls are to."""
        send, send_whole = dispatch(self.backends), dispatch_whole(self.backends)
        if around is not None:
            send, send_whole = around.stream(send), around.whole(send_whole)
        if self.telemetry is not None:
            send = attempt(self.telemetry)(send)
        if self.scored is not None:
            send, send_whole = self.scored.handler(send), self.scored.whole_handler(send_whole)
        hops = Hops(self.policy, self.health)
        places = Queue(self.pools, self.metrics, interval=self.positions_every)
        headers = headers_for(self.policy, self.pools)
        return UpstreamLoop(
            self.router, hops, places, send, send_whole, self.metrics, self.telemetry, headers
        )

    async def count_tokens(self, call: Call) -> Chunks:
        """One chunk with the provider's count as its envelope, which is empty where no provider counts."""
        counted: dict[str, Json] = {}
        with suppress(ContextTooLong, Forbidden, Upstream, RateLimited):
            first = self.router.plan(call)[0]
            backend = self.backends[first.target.backend]
            if isinstance(backend, CountsTokens):
                call.candidate = first
                counted = await backend.count_tokens(call, first.target)
        yield Chunk(envelope=counted)


class SideCalls:
    """Calls beside a request, to shadow models and judges: they count against their payer's limits on tokens and
    dollars, and are not recorded as requests.
    """

    def __init__(self, quotas: Quotas, accounting: Accounting) -> None:
        self._quotas = quotas
        self._accounting = accounting

    def stage(self, following: Handler) -> Handler:
        def as_caller(call: Call) -> Chunks:
            return following(_swapped(call))

        paid = record(Observers(self._quotas, self))(as_caller)
        return lambda call: paid(_swapped(call)) if call.payer is not None else following(call)

    def record(self, call: Call, ended: Ended) -> None:
        self._accounting.record_charges(call, ended.bill.charges)

    def record_for_house(self, call: Call, bill: Bill) -> None:
        self._accounting.record_for_house(call, bill)


def _swapped(call: Call) -> Call:
    """Only quotas and accounting know who pays; to all others it is its caller's."""
    return replace(call, principal=call.payer or call.principal, payer=call.principal)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages before ``UpstreamPipeline``'s, as far as ``policy`` has a use for them. Caches see masked requests,
    and keep only answers that the guards let through.
    """

    policy: Policy
    metrics: Metrics
    receipts: Receipts | None
    accounting: RequestAccounting
    quotas: Quotas
    guards: Guards
    flags: BackgroundScans
    caches: Caches
    scorer: ComplexityScorer
    shadows: Shadows
    side_calls: SideCalls
    experiments: Experiments
    telemetry: Telemetry | None = None
    texts: tuple[KeepsAnswers, ...] = ()
    """Who wants texts of answers, where they are recorded or judged, or are to be JSON and drifts are looked for."""
    compares: Compares | None = None
    """Where answers of shadows are judged, too."""

    def handler(self, upstream: Handler) -> Handler:
        def for_shadows(following: Handler) -> Handler:
            # A shadow model may be a cascade, as the model that a caller asks may be.
            return self.side_calls.stage(cascade(self.scorer)(following))

        stages = {
            "experiment": experiment(self.experiments),
            "record": record(self._observers),
            "guard_input": guard_input(self.guards, self.flags, self.metrics),
            "cache": cache(self.caches, self.metrics),
            "guard_output": guard_output(self.guards, self.flags, self.metrics),
            "truncate": truncate(),
            "cascade": cascade(self.scorer),
            "shadow": shadow(self.shadows, self.metrics, for_shadows, self.compares),
        }
        if self.texts:
            stages["cache"] = partial(fold, [*map(keep_answer, self.texts), stages["cache"]])
        for name in self._unused():
            del stages[name]
        if self.telemetry is None:
            return fold(stages.values(), upstream)
        if self.telemetry.config.content:
            # Past the guards of input, and outside those of output: all that passes here is masked.
            stages["cache"] = partial(fold, [content, stages["cache"]])
        return fold(with_spans(stages), upstream)

    def whole(self, upstream: AnswersWhole) -> WholeHandler | None:
        """The same for calls whose ``request.is_whole``; None where a stage that is in use knows no such way."""
        if self.telemetry is not None or self.caches.enabled or not _IN_NO_WHOLE.issubset(self._unused()):
            return None
        whole = without_caches(upstream.whole)
        for one in self.texts:
            whole = keep_whole(one, whole)
        recorded = record_whole(self._observers, whole)
        return experiment_whole(self.experiments, recorded) if self.policy.experiments else recorded

    def _unused(self) -> Iterator[str]:
        """The stages that no request has a use for, whoever sends it."""
        models = self.policy.models.values()
        if not self.policy.experiments:
            yield "experiment"
        if not self.policy.guards:
            yield from ("guard_input", "guard_output")
        if not any(model.cascade for model in models):
            yield "cascade"
        if not any(model.shadow for model in models):
            yield "shadow"

    def recorded(self, handler: Handler) -> Handler:
        """For requests that are answered here, as moderations are."""
        return record(self._observers)(handler)

    @property
    def _observers(self) -> Observers:
        return Observers(self.quotas, self.accounting, self.metrics, self.receipts, self.telemetry)

    def counter(self, upstream: UpstreamPipeline) -> Handler:
        """Counts a prompt's tokens as its provider sees it, past the input guards. No model is run: it is a request for
        limits, and has a receipt, but is no part of the ledger and of what models took."""
        counting = guard_input(self.guards, self.flags, self.metrics, replies=False)(upstream.count_tokens)
        observers = Observers(self.quotas, receipts=self.receipts, telemetry=self.telemetry)
        return record(observers)(counting)


def fold(stages: Iterable[Stage], handler: Handler) -> Handler:
    """``stages`` around ``handler``, the first outermost."""
    for stage in reversed([*stages]):
        handler = stage(handler)
    return handler


def with_spans(stages: Mapping[str, Stage]) -> list[Stage]:
    """``stages``, so that each sampled request has a span for its way through each of them that decides something."""
    return [
        one
        for name, stage in stages.items()
        for one in ((entering(name), stage) if name in DECIDED else (stage,))
    ]
