"""A runtime from a policy: what is configured as in the one before is shared with it."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from gateway.admission.shedding import update_terms
from gateway.backends.model_readiness import ModelReadiness
from gateway.backends.readiness import Readiness
from gateway.caching.caches import Caches
from gateway.caching.freshness import is_time_sensitive
from gateway.evaluation.asking import Judge
from gateway.evaluation.evaluator import Bench
from gateway.evaluation.samples import Samples
from gateway.experiments.experiments import Experiments
from gateway.guards.arm_guards import guards_of
from gateway.guards.moderator import Moderator
from gateway.guards.scanners.factory import build_scanners
from gateway.guards.scanners.harms import HARMS
from gateway.guards.scanners.judge import ModelJudge
from gateway.guards.scanners.offload import build_offloads
from gateway.guards.scans.background import BackgroundScans
from gateway.guards.scans.review import Review
from gateway.identity.authenticator import Authenticator, key_ring
from gateway.observe.accounting import Accounting, RequestAccounting
from gateway.pipeline import Pipeline, SideCalls, UpstreamPipeline
from gateway.policy import missing_extras, schema
from gateway.policy.limited import has_calendar_limits
from gateway.policy.loader import Loaded
from gateway.policy.members import Members
from gateway.policy.problems import render
from gateway.recording.masking import TextMasker
from gateway.recording.recordings import Recordings
from gateway.recording.records import Records
from gateway.rendered import RenderedCache
from gateway.routing.router import Router
from gateway.routing.scored import Scored
from gateway.runtime import stores
from gateway.runtime.adapter_views import AdapterRouter, AdapterViews, Rank
from gateway.runtime.backends import build_backends, build_engines, runs_here
from gateway.runtime.drift import DriftAccounting
from gateway.runtime.earlier_usage import EarlierUsage
from gateway.runtime.libraries import load_libraries
from gateway.runtime.rollouts import RolloutAccounting
from gateway.runtime.runtime import Runtime
from gateway.runtime.worker_state import WorkerState
from gateway.sidecar.requirements import has_heads, unready
from gateway.stages.prompt_tokens import AnswersWhole, PromptTokens
from gateway.types import Handler

log = logging.getLogger(__name__)

Judges = dict[str, ModelJudge]


async def build_runtime(
    loaded: Loaded, state: WorkerState, before: Runtime | None, *, same_policy: bool = False
) -> Runtime:
    """``before`` is the runtime in force, whose backends, stores and caches live on where they stay the same. With
    ``same_policy`` only its replicas are others."""
    members: Members = {}
    if state.replicas is not None:
        loaded, members = state.replicas.applied(loaded)
    policy, metrics = loaded.policy, state.metrics
    await load_libraries(policy)
    if state.held is not None:
        await state.held.update(policy, members)
    keys = await asyncio.to_thread(
        key_ring, policy, state.dev_key_sha256, before.authenticator if before else None
    )
    ledger = stores.ledger(policy.ledger, state, before)
    findings = stores.findings(policy.review, state, before)
    receipts = stores.receipts(policy, state, before)
    quotas = stores.quotas(policy, state, before)
    earlier_usage = before.earlier_usage if before is not None and same_policy else None
    if earlier_usage is None and ledger is not None and has_calendar_limits(policy):
        earlier_usage = await EarlierUsage.counted(quotas, ledger, policy)
    cache_days = stores.cache_days(policy, state, before)
    accounting = _accounting(policy, state, metrics, ledger, state.callbacks.guard_blocked, cache_days)
    telemetry = await stores.telemetry(policy.telemetry, before)
    side_calls = SideCalls(quotas, accounting)
    recordings = stores.recordings(policy, state, before)
    records = _records(policy, state, accounting, recordings) if recordings is not None else None
    samples = _samples(policy, state, records or accounting)
    told: RequestAccounting = samples or records or accounting
    drift = state.drift if policy.drift is not None else None
    if drift is not None:
        told = DriftAccounting(told, drift)
    backends = build_backends(loaded, state, before, replicated=members)
    state.pools.update(policy)
    _forget_replicas(policy, state)
    update_terms(policy, state.pools)
    disabled_since = state.disabled_since(loaded.disabled)
    scored = Scored.of(policy, state.scores, state.pools)
    state.scores.keep(policy.backends if scored is not None else ())
    router = Router(
        policy,
        backends.keys(),
        state.pools,
        state.affinity,
        state.random,
        disabled_since=disabled_since,
        rollouts=state.rollouts,
        members=members,
        rotation=state.replicas.rotation if state.replicas is not None else None,
        scored=scored,
    )
    upstream = UpstreamPipeline(
        policy=policy,
        backends=backends,
        router=router,
        health=state.health,
        pools=state.pools,
        metrics=metrics,
        telemetry=telemetry,
        scored=scored,
    )
    upstream_handler = upstream.handler()
    asked_first: AnswersWhole = upstream_handler
    if state.held is not None and state.held.used:
        asked_first = PromptTokens(state.held, upstream_handler)
    judges = _judges(policy, side_calls.stage(upstream_handler))
    scanners = build_scanners(policy, state.sidecar, judges, state.poster)
    offloads = build_offloads(policy, state.scanning, judges)
    experiments = Experiments(policy, router.serves)
    pipeline = Pipeline(
        policy=policy,
        metrics=metrics,
        receipts=receipts,
        accounting=told,
        quotas=quotas,
        guards=guards_of(policy, scanners, offloads, experiments.by_id),
        flags=BackgroundScans(metrics, receipts.keep, Review(metrics, policy.review, findings)),
        caches=Caches.open(
            policy,
            is_time_sensitive=is_time_sensitive,
            sidecar=state.sidecar,
            before=before.caches if before else None,
        ),
        # An embedding costs nothing where a guard or a cache needs it, too; for routing alone no sidecar is started.
        scorer=state.embedded_scorer if has_heads(policy) else state.scorer,
        shadows=state.shadows,
        side_calls=side_calls,
        telemetry=telemetry,
        texts=tuple(
            one
            for one in (records if policy.record.texts != "none" else None, samples, drift)
            if one is not None
        ),
        compares=samples,
        experiments=experiments,
    )
    engines = build_engines(policy, backends, state, before)
    proving = {name for name in engines if isinstance(policy.backends[name], schema.EngineBackend)}
    everybodys = {name: one for name, one in policy.guards.items() if name not in policy.guards_of_arms}
    moderator = Moderator.of(everybodys, state.sidecar, judges, state.scanning)
    runtime = Runtime(
        policy=policy,
        authenticator=Authenticator(
            policy,
            state.folder,
            state.outgoing,
            keys=keys,
            before=before.authenticator if before else None,
        ),
        backends=backends,
        engines=engines,
        members=members,
        rotation=state.replicas.rotation if state.replicas is not None else None,
        receipts=receipts,
        responses=stores.responses(policy, state, before),
        files=stores.files(policy, state, before),
        batches=stores.batches(policy.ledger, state, before),
        feedback=stores.feedback(policy.ledger, state, before),
        quotas=quotas,
        earlier_usage=earlier_usage,
        ledger=ledger,
        cache_days=cache_days,
        findings=findings,
        accounting=accounting,
        caches=pipeline.caches,
        flags=pipeline.flags,
        rendered=RenderedCache(
            pipeline.caches,
            pipeline.guards,
            quotas,
            metrics=metrics,
            receipts=receipts,
            accounting=told,
            telemetry=telemetry,
            is_used=(policy.record.texts == "none" or records is None) and not policy.experiments,
        ),
        telemetry=telemetry,
        records=records,
        recordings=recordings,
        handler=pipeline.handler(asked_first),
        whole=pipeline.whole(asked_first),
        moderator=pipeline.recorded(moderator.handle),
        counter=pipeline.counter(upstream),
        readiness=Readiness(
            backends,
            needed=[name for name in backends if runs_here(policy.backends[name])],
            # An engine is proven by a token that it decoded; other backends only show that they can be reached.
            proven=lambda name: state.health.recovered(name) if name in proving else None,
            trouble=state.health.problem,
            guards=unready(policy, state.sidecar),
            models=ModelReadiness(policy, loaded.disabled, members),
            store=partial(quotas.closed, policy),
            extras={render(path): why for path, why in missing_extras.without(policy)},
        ),
        evaluations=stores.evaluations(policy.ledger, state, before),
        rollouts=state.rollouts,
    )
    if policy.adapters is not None and state.adapters is not None and state.listings is not None:
        room, listings = state.adapters, state.listings
        parents = {one.name: name for name, its in members.items() for one in its}
        names = {name: parents.get(name, name) for name in backends}
        room.use(policy, runtime.files, names)
        await listings.use(policy, names)

        def router_of(own: schema.Policy, rank: Rank) -> Router:
            return AdapterRouter(
                own,
                backends.keys(),
                state.affinity,
                state.random,
                rank=rank,
                loads=state.pools,
                disabled_since=disabled_since,
                members=members,
                rotation=state.replicas.rotation if state.replicas is not None else None,
                scored=Scored.of(own, state.scores, state.pools),
            )

        runtime.adapters = AdapterViews(
            runtime,
            room,
            listings.adapters,
            pipeline,
            upstream,
            router_of,
            lambda own: guards_of(own, scanners, offloads),
        )
    elif state.listings is not None:
        await state.listings.use(policy, {})
    if state.evaluator is not None:
        state.evaluator.update(_bench(runtime, side_calls.stage(upstream_handler)))
    return runtime


def _forget_replicas(policy: schema.Policy, state: WorkerState) -> None:
    """Nothing is kept of those that are gone and have no request in flight: pods come and go, and have new names."""
    known = {*policy.backends, *(pool.name for pool in state.pools)}
    for name in {name for name, _, _ in state.health.breakers() if "@" in name} - known:
        state.health.forget(name)


def _accounting(policy: schema.Policy, state: WorkerState, *given: Any) -> Accounting:
    if state.rollouts is not None and any(model.rollout for model in policy.models.values()):
        return RolloutAccounting(*given, rollouts=state.rollouts)
    return Accounting(*given)


def _samples(policy: schema.Policy, state: WorkerState, accounting: RequestAccounting) -> Samples | None:
    if policy.evaluation is None or state.evaluator is None:
        return None
    masker = TextMasker(policy, state.sidecar, state.scanning)
    return Samples(policy, policy.evaluation, accounting, masker, state.evaluator.add)


def _bench(runtime: Runtime, handler: Handler) -> Bench | None:
    config = runtime.policy.evaluation
    if config is None:
        return None
    judge = Judge(config, runtime.policy, handler)
    return Bench(judge, runtime.evaluations, runtime.ledger, runtime.in_use, runtime.telemetry)


def _records(
    policy: schema.Policy, state: WorkerState, accounting: Accounting, recordings: Recordings
) -> Records:
    masks = policy.record.texts == "masked"
    masker = TextMasker(policy, state.sidecar, state.scanning) if masks else None
    return Records(policy, accounting, recordings, masker)


def _judges(policy: schema.Policy, handler: Handler) -> Judges:
    return {
        name: ModelJudge(
            guard.judge,
            policy,
            handler,
            wanted={"prompt_injection"}
            if isinstance(guard, schema.InjectionGuard)
            else HARMS.keys() - {"prompt_injection"},
            local_only=guard.action == "local",
        )
        for name, guard in policy.guards.items()
        if isinstance(guard, schema.InjectionGuard | schema.ToxicityGuard) and guard.judge
    }
