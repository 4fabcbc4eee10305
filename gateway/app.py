"""The composition root of a worker: settings in, an ASGI app out; ``runtime.build`` wires what is of a policy."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.adapters.derived import loads_adapters
from gateway.adapters.listing import ListingRoom
from gateway.adapters.room import CHANGED, USES, AdapterRoom
from gateway.admin import page_files, playground
from gateway.admin import routes as admin
from gateway.admin.api import adapters as adapters_api
from gateway.admin.api import drift as drift_api
from gateway.admin.api import experiments as experiments_api
from gateway.admin.api import explain, provider_sign_in, sign_in
from gateway.admin.api import rollouts as rollouts_api
from gateway.admin.endpoint import routes as admin_routes
from gateway.admin.refusals import Refusals
from gateway.admin.site import Site
from gateway.backends.transport import OutgoingTransport
from gateway.batches.batch import ENDPOINTS
from gateway.batches.runner import BatchRunner
from gateway.children import watchdog
from gateway.children.process_pool import ProcessPool
from gateway.control.in_force import publish
from gateway.control.peers import Peers
from gateway.evaluation.evaluator import Evaluator
from gateway.experiments.scores import JUDGE
from gateway.guards.scanners.offload import MAX_WAIT
from gateway.held_prefixes.held_prefixes import HeldPrefixes
from gateway.identity.oidc import Provider
from gateway.identity.session_cookie import PendingSignIn, Seal, Session
from gateway.observe.metrics import Metrics
from gateway.policy.history import PolicyHistory
from gateway.policy.key_store import state_files
from gateway.policy.loader import Loaded
from gateway.policy.reload import PolicyWatcher
from gateway.policy.variables import Variables
from gateway.replicas.replicas import Replicas
from gateway.routing.score import Scores
from gateway.routing.told_holdings import ToldHoldings
from gateway.runtime import shared
from gateway.runtime.background_requests import BackgroundRequests
from gateway.runtime.cost_watch import watch_costs
from gateway.runtime.drift import Drift
from gateway.runtime.generations import Generations
from gateway.runtime.rollouts import Rollouts
from gateway.runtime.sampler import Sampler
from gateway.runtime.worker_state import WorkerState
from gateway.settings import Settings
from gateway.web import routes
from gateway.web.auth import Authentication
from gateway.web.batch_host import BatchHost
from gateway.web.dispatcher import Dispatcher
from gateway.web.operator_port import OperatorPort
from gateway.web.operator_token import OperatorToken
from gateway.web.router import EndpointRouter
from gateway.web.session_auth import SessionAuth
from gateway.wire.responses.sealed import SummarySeal


def build_app(settings: Settings, *, pulse: int | None = None) -> ASGIApp:
    """Loads the policy when it starts, and raises ``gateway.policy.problems.PolicyError`` then if it is invalid.

    ``pulse`` is the file descriptor that the event loop writes to for the watchdog.
    """
    metrics = Metrics(tenants=settings.metrics_tenants)
    pool = ProcessPool()
    # Guards have a pool of their own, so that they do not queue behind slow bodies.
    scanning = ProcessPool(queue_timeout=MAX_WAIT)
    peers = Peers(settings.peers, settings.worker)
    variables = Variables()
    state = WorkerState(
        metrics,
        env=variables,
        folder=settings.policies,
        state_dir=settings.state_dir,
        workers=settings.workers,
        worker=settings.worker,
        dev_key_sha256=settings.dev_key_sha256,
        sidecar=settings.sidecar,
        scanning=scanning,
        slots=settings.slots,
        peers=peers,
    )
    state.rollouts = rollouts = Rollouts(settings.state_dir, state.callbacks)
    state.evaluator = Evaluator(metrics, lambda arm, at, score: rollouts.scored(arm, JUDGE, at, score))
    state.drift = drift = Drift(settings.state_dir, state.callbacks, metrics)
    state.adapters = adapters = AdapterRoom(
        settings.state_dir, peers, metrics, worker=settings.worker, on_gone=state.health.forget_model
    )
    state.listings = listings = ListingRoom(on_gone=state.health.forget_target)
    state.held = HeldPrefixes(settings.slots, state.transport or OutgoingTransport, worker=settings.worker)
    state.scores = Scores(ToldHoldings(state.held), clock=state.pools.clock)
    state.replicas = replicas = Replicas(
        settings.state_dir, worker=settings.worker, zone=settings.zone, transport=state.outgoing
    )
    state.health.watcher = replicas.rotation.watcher
    # Under 'tollgate serve', which keeps a copy of the last good policy, generations have its history's numbers.
    history = PolicyHistory(settings.state_dir, settings.policies) if settings.last_good is not None else None
    generations = Generations(state, history)
    replicas.on_change = generations.replicas_changed
    provider = Provider(state.outgoing)
    background = BackgroundRequests(peers, generations.current)
    runners: list[BatchRunner] = []
    watchers: list[PolicyWatcher] = []
    site = Site(
        policies=settings.policies,
        state_dir=settings.state_dir,
        env=variables,
        peers=peers,
        rejected=lambda: watchers[0].last_error if watchers else None,
        generation=lambda: generations.number,
        current=generations.current,
    )
    peers.handlers = {
        **admin.handlers(site, state),
        **shared.handlers(generations.current, background),
        CHANGED: adapters.told,
        USES: adapters.asked,
    }

    def rejected(error: Exception) -> None:
        metrics.policy_errors.inc()
        state.callbacks.policy_rejected(error)

    async def apply(loaded: Loaded) -> None:
        await rollouts.update(loaded.policy)
        await drift.update(loaded.policy)
        await replicas.update(loaded.policy)
        await adapters.update(loaded.policy)
        await generations.apply_policy(loaded)
        if not loads_adapters(loaded.policy):
            await adapters.aclose()
        for runner in runners:
            runner.policy_changed()

    def wake_batches() -> None:
        for runner in runners:
            runner.wake()

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        watcher = PolicyWatcher(
            settings.policies,
            apply,
            env=variables,
            on_error=rejected,
            on_revoked=generations.withdraw,
            on_in_force=partial(publish, settings.in_force, settings.worker) if settings.in_force else None,
            also=state_files(settings.state_dir),
            fallback=settings.last_good,
            logs=history is None,
        )
        # The loop keeps a set of all open async generators, to close them at its end; a stream has several, and this
        # was 5 % of its cost. All of ours are closed by their readers.
        sys.set_asyncgen_hooks(firstiter=None)
        watching = [asyncio.create_task(metrics.watch_lag())]
        try:
            watchers.append(watcher)
            async with watcher, peers:
                runner = BatchRunner(BatchHost(generations.current, batched, pool, metrics))
                runners.append(runner)
                watching.append(asyncio.create_task(runner.run()))
                watching.append(asyncio.create_task(Sampler(state, generations.current, watcher).run()))
                if settings.worker == 1:
                    watching.append(asyncio.create_task(watch_costs(state.callbacks, generations.current)))
                if pulse is not None:
                    watching.append(asyncio.create_task(watchdog.heartbeat(pulse)))
                yield
        finally:
            for task in watching:
                task.cancel()
            for runner in runners:
                await runner.aclose()
            await background.aclose()
            await provider.aclose()
            await generations.aclose()
            await pool.aclose()
            await scanning.aclose()
            metrics.flush()

    secret = settings.session_secret or secrets.token_hex()
    sessions = SessionAuth(Seal(secret, "admin session", Session))
    refusals = Refusals(site)
    admin_operations = [
        *admin.operations(site),
        *rollouts_api.operations(rollouts),
        *experiments_api.operations(),
        *drift_api.operations(drift),
        *adapters_api.operations(site, adapters, listings),
        *explain.operations(site, explain.Explainer(state, pool, lambda: generations.loaded)),
        *sign_in.operations(sessions),
        *provider_sign_in.operations(sessions, Seal(secret, "sign-in", PendingSignIn), provider),
    ]
    endpoints = routes.build(
        metrics,
        pool,
        OperatorToken(settings.metrics_token, settings.metrics_port),
        background,
        SummarySeal(secret),
        max_body=settings.max_body_bytes,
        heartbeat=settings.heartbeat,
        wake_batches=wake_batches,
        documented=[*(operation for operation, _ in admin_operations), playground.OPERATION],
        draining=settings.draining,
        metrics_age=settings.metrics_age,
    )
    batched = {route.path: route for route in endpoints if route.path in ENDPOINTS}
    chat = next(route.app for route in endpoints if route.path == "/v1/chat/completions")
    page = [Route(playground.PATH, playground.Playground(chat), methods=["POST"]), *page_files.routes()]
    router = EndpointRouter([*endpoints, *admin_routes(admin_operations, refusals.record), *page], lifespan)
    public = (*routes.PUBLIC, sign_in.PATH, *provider_sign_in.PATHS, *page_files.paths())
    port = settings.metrics_port
    return Dispatcher(
        router,
        Authentication(public=public, sessions=sessions, refused=refusals.record),
        current=generations.current,
        metrics=metrics,
        error_writers=routes.ERROR_WRITERS,
        operator_port=OperatorPort(port, routes.OPERATORS) if port is not None else None,
    )
