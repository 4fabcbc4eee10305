"""One request on its way through the gateway's own parts, as far as the place where it would be sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import orjson
from starlette.types import Message, Receive, Scope, Send

from gateway.admission.pools import Pools
from gateway.caching.caches import Caches
from gateway.children.process_pool import ProcessPool
from gateway.errors import GatewayError, NotFound
from gateway.experiments.experiments import Experiments
from gateway.fallback.hop import Hops
from gateway.guards.arm_guards import guards_of
from gateway.guards.scanners.factory import build_scanners
from gateway.guards.scanners.offload import build_offloads
from gateway.guards.scanners.scanner import Scanner
from gateway.guards.scans.background import BackgroundScans
from gateway.identity.authenticator import Authenticator
from gateway.lab.adapters_at_hand import ChangedViews
from gateway.lab.explain.question import PATHS, Found, Question
from gateway.lab.explain.unasked import (
    NoMetrics,
    NothingSent,
    ReadAnswers,
    ReadPools,
    ReadQueue,
    ReadStore,
    UnaskedScanner,
    not_sent,
)
from gateway.observe.accounting import Accounting
from gateway.observe.metrics import Metrics
from gateway.pipeline import Pipeline, SideCalls
from gateway.policy.schema import DEFAULT_TIER, Shadow, WebhookGuard
from gateway.quota.allowance import Reservation
from gateway.quota.quotas import Quotas
from gateway.rendered import RenderedCache
from gateway.routing.affinity import ReadAffinity
from gateway.routing.router import Router
from gateway.routing.scored import Scored
from gateway.routing.shadow import Counted, Shadows
from gateway.runtime.adapter_views import AdapterRouter, AdapterView
from gateway.runtime.background_requests import BackgroundRequests
from gateway.runtime.runtime import Adapted, Runtime
from gateway.runtime.worker_state import WorkerState
from gateway.server.cycle import CONNECTION_STATE, ConnectionState
from gateway.server.headers import RequestHeaders, by_name
from gateway.sidecar.requirements import has_heads
from gateway.stages.experiment import assign
from gateway.stages.record import Observers
from gateway.stores.response_store import ResponseStore
from gateway.types import Call, Chunk, Chunks, Handler, Principal
from gateway.upstream_loop import UpstreamLoop
from gateway.web import routes
from gateway.web.auth import Authentication
from gateway.web.context import RequestContext
from gateway.web.operator_token import OperatorToken
from gateway.wire.responses.sealed import SummarySeal

FLAGS_WITHIN = 5.0
"""Seconds for guards that only flag, which scan beside the request."""


class DryRun:
    """Questions to one policy in force. What is asked of the state of health, load, limits, caches is the worker's own;
    what a request would change of it is not changed."""

    def __init__(self, runtime: Runtime, state: WorkerState, pool: ProcessPool, *, at_rest: bool) -> None:
        """``pool`` is where long bodies are parsed. ``at_rest``: nothing runs, and what the sidecar would judge is
        taken to be clean."""
        self.runtime = runtime
        self.state = state
        self.at_rest = at_rest
        self.metrics = cast(Metrics, NoMetrics())
        self._turn = asyncio.Lock()
        self._unjudged: set[str] = set()
        policy = runtime.policy
        self.experiments = Experiments(policy, self.router(state.pools).serves)
        scanners, offloads = self._scanners(), build_offloads(policy, state.scanning, ())
        self._guards = guards_of(policy, scanners, offloads, self.experiments.by_id)
        self._guards_of = partial(guards_of, scanners=scanners, offloads=offloads)
        self._endpoints = {
            route.path: route.app
            for route in routes.build(
                self.metrics,
                pool,
                OperatorToken(None, None),
                BackgroundRequests(),
                SummarySeal("explain"),
                max_body=2**31,
                heartbeat=0,
            )
            if route.path in PATHS
        }

    @property
    def disabled(self) -> frozenset[str]:
        """Backends that are not in use."""
        runtime = self.runtime
        return frozenset(name for name in runtime.policy.backends if not runtime.servers(name))

    def router(self, pools: Pools, adapted: AdapterView | None = None) -> Router:
        state = self.state
        policy = (adapted or self.runtime).policy
        kind = Router if adapted is None else partial(AdapterRouter, random=state.random, rank=adapted.rank)
        return kind(
            policy,
            self.runtime.backends.keys(),
            loads=pools,
            affinity=ReadAffinity(state.affinity),
            disabled_since=state.disabled_since(self.disabled),
            rollouts=state.rollouts,
            members=self.runtime.members,
            rotation=state.replicas.rotation if state.replicas is not None else None,
            scored=Scored.of(policy, state.scores, pools),
        )

    async def ask(self, question: Question) -> Found:
        """One at a time."""
        async with self._turn:
            with self.runtime.in_use():
                return await self._ask(question)

    async def _ask(self, question: Question) -> Found:
        self._unjudged.clear()
        headers = [(name.lower().encode(), value.encode()) for name, value in question.headers.items()]
        authenticator = Known(self.runtime.authenticator, self._owner(question.key), question.key)
        # The caller is authenticated by the runtime as it is; all that follows is the dry one's.
        first = replace(self.runtime, authenticator=cast(Authenticator, authenticator))
        context = RequestContext("req_explained", first, by_name(headers), started=time.perf_counter())
        found = Found(question, context)
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": question.path,
            "query_string": b"",
            "headers": headers,
            CONNECTION_STATE: ConnectionState(),
        }
        try:
            endpoint = self._endpoints.get(question.path)
            if endpoint is None:
                raise NotFound(f"'{question.path}' cannot be explained. Give one of {', '.join(PATHS)}.")
            await Authentication(public=()).admit(context, scope)
            found.principal = context.caller()
            found.used = await self.runtime.quotas.used(self.runtime.policy, found.principal)
            context.runtime, flags = await self._dry(found)
            context.put(scope)
            try:
                body = _in_the_foreground(question)
                await endpoint(scope, _receiving(body), _status_to(found))
            finally:
                async with asyncio.timeout(FLAGS_WITHIN):
                    await flags.idle()
        except NothingSent as reached:
            found.sent = reached.call
        except GatewayError as error:
            found.error = error
        found.unjudged = frozenset(self._unjudged)
        return found

    def _owner(self, key: str) -> str | None:
        """The tenant of the key with this id; None where it is no id."""
        mine = next((one for one in self.runtime.policy.keys if one.id == key), None)
        if mine is not None:
            return mine.tenant
        return "default" if key == "dev" and not self.runtime.policy.keys else None

    def _scanners(self) -> dict[str, Scanner]:
        policy = self.runtime.policy
        found: dict[str, Scanner] = {}
        for name, scanner in build_scanners(policy, self.state.sidecar, {}).items():
            guard = policy.guards[name]
            if isinstance(guard, WebhookGuard):
                why = f"the server of guard '{name}' is not asked, and is taken to find nothing"
                scanner = UnaskedScanner(scanner, why, self._unjudged, asks=False)
            elif self.at_rest:
                why = f"the model of guard '{name}' does not run here, and is taken to find nothing"
                scanner = UnaskedScanner(scanner, why, self._unjudged, asks=True)
            elif getattr(guard, "judge", None) is not None:
                why = f"the judge of guard '{name}' is not asked: its faster checks alone decide"
                scanner = UnaskedScanner(scanner, why, self._unjudged, asks=True)
            found[name] = scanner
        return found

    async def _dry(self, found: Found) -> tuple[Runtime, BackgroundScans]:
        """The runtime for one question of a caller that is known."""
        runtime = self.runtime
        quotas = await runtime.quotas.copied(runtime.policy, found.context.caller())
        flags = BackgroundScans(self.metrics, lambda tenant, receipt: None)
        dry = partial(self._dry_of, found, cast(Quotas, _Reserving(quotas, found)), flags)
        adapters = ChangedViews(runtime.adapters, dry) if runtime.adapters is not None else None
        return replace(dry(runtime), adapters=cast(Adapted | None, adapters)), flags

    def _dry_of(self, found: Found, quotas: Quotas, flags: BackgroundScans, runtime: Runtime) -> Runtime:
        """``runtime`` is the one in force, or that of an adapter."""
        state, metrics, policy = self.state, self.metrics, runtime.policy
        adapted = runtime if isinstance(runtime, AdapterView) else None
        guards = self._guards if adapted is None else self._guards_of(policy)
        experiments = self.experiments if adapted is None else Experiments(policy)
        accounting = Accounting(metrics, None)
        pools = ReadPools(state.pools)
        queue = ReadQueue(pools, metrics)
        found.waits = queue.waits
        found.health, found.pools = state.health.copied(), pools
        hops, router = Hops(policy, found.health), self.router(pools, adapted)
        found.router = router
        loop = UpstreamLoop(router, hops, queue, not_sent, _never_whole, metrics)
        caches = self._caches(runtime)
        pipeline = _DryPipeline(
            policy=policy,
            metrics=metrics,
            receipts=runtime.receipts,
            accounting=accounting,
            quotas=quotas,
            guards=guards,
            flags=flags,
            caches=caches,
            scorer=state.embedded_scorer if has_heads(policy) else state.scorer,
            shadows=_NoShadows(),
            side_calls=SideCalls(quotas, accounting),
            experiments=experiments,
        )
        handler = pipeline.handler(loop)

        def noticed(call: Call) -> Chunks:
            found.call = call
            assign(experiments, call)  # once: the guards are looked up as its arm has them
            found.guards = guards.of_call(call)
            entry = caches.entry(call) if caches.exact is not None else None
            if entry is not None:
                key = (entry.key, call.request.stream, call.principal.tier)
                found.shared_flight = runtime.caches.flights.find(key) is not None
            return handler(call)

        responses = runtime.responses
        if responses is not None:
            responses = ResponseStore(
                ReadStore(responses.store), ttl=policy.responses.ttl, max_entry=policy.responses.max_entry
            )
        unused = RenderedCache(
            Caches(policy, None, None),
            guards,
            quotas,
            metrics=metrics,
            receipts=runtime.receipts,
            accounting=accounting,
        )
        return replace(
            runtime,
            quotas=quotas,
            responses=responses,
            accounting=accounting,
            caches=caches,
            flags=flags,
            rendered=unused,
            handler=noticed,
            whole=None,
            ledger=None,
            telemetry=None,
        )

    def _caches(self, runtime: Runtime) -> Caches:
        of = runtime.caches
        answers = ReadAnswers(of.answers) if of.answers is not None else None
        caches = Caches(runtime.policy, answers, of.semantic)
        if caches.exact is not None:  # who waits for another's answer is looked at by itself
            caches.exact = caches.exact.model_copy(update={"single_flight": False})
        return caches


class Known:
    """Authenticates the caller of one question: by a key's id, where it is one."""

    def __init__(self, authenticator: Authenticator, tenant: str | None, key: str) -> None:
        self._authenticator = authenticator
        self._tenant = tenant
        self._key = key

    async def principal(self, scope: Scope, headers: RequestHeaders | None = None) -> Principal:
        if self._tenant is not None:
            return self._authenticator.still(Principal(self._key, self._tenant, tier=DEFAULT_TIER))
        shown: RequestHeaders = {b"authorization": f"Bearer {self._key}".encode()}
        return await self._authenticator.principal(scope, shown)


class _DryPipeline(Pipeline):
    """Of which nobody is told."""

    __slots__ = ()

    @property
    def _observers(self) -> Observers:
        return Observers(self.quotas, metrics=self.metrics)


class _Reserving:
    """Limits that count apart, and show what was reserved of them."""

    def __init__(self, quotas: Quotas, found: Found) -> None:
        self._quotas = quotas
        self._found = found

    def __getattr__(self, name: str) -> object:
        return getattr(self._quotas, name)

    async def reserve(self, call: Call) -> Reservation | None:
        reservation = await self._quotas.reserve(call)
        if self._found.reservation is None:
            self._found.reservation = reservation
        return reservation


class _NoShadows(Shadows):
    """No copies are made."""

    def send(
        self, call: Call, rule: Shadow, following: Handler, count: Counted, watch: object = None
    ) -> None:
        """The policy says which there would be."""


async def _never_whole(call: Call) -> Sequence[Chunk]:
    raise NothingSent(call)


def _in_the_foreground(question: Question) -> bytes:
    """The body without ``background``: whether somebody waits for the answer changes nothing of what decides on it."""
    if not question.path.endswith("/responses") or b'"background"' not in question.body:
        return question.body
    try:
        asked = orjson.loads(question.body)
    except orjson.JSONDecodeError:
        return question.body
    return orjson.dumps({**asked, "background": False}) if isinstance(asked, dict) else question.body


def _receiving(body: bytes) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    return receive


def _status_to(found: Found) -> Send:
    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            found.status = message["status"]

    return send
