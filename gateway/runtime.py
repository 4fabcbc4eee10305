"""What one policy generation built, and the change from one generation to the next."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, Self

import httpx
from pydantic import SecretStr

from gateway.admission.pool import Pools
from gateway.admission.shedding import update_terms
from gateway.backends.anthropic import AnthropicBackend
from gateway.backends.embedder import EmbedderBackend
from gateway.backends.engine_state import EngineState
from gateway.backends.fake import FakeBackend
from gateway.backends.openai import OpenAIBackend
from gateway.backends.readiness import Readiness
from gateway.backends.standing import Standing
from gateway.backends.transport import AiohttpTransport
from gateway.caching.caches import Caches
from gateway.caching.freshness import is_time_sensitive
from gateway.cascade.complexity import Classifier
from gateway.cascade.embedded import Embedded
from gateway.children.process_pool import ProcessPool
from gateway.fallback.health import HealthRegistry
from gateway.guards.actions.background import BackgroundScans
from gateway.guards.actions.guards import Guards
from gateway.guards.actions.moderator import Moderator
from gateway.guards.actions.offload import build_offloads
from gateway.guards.scanners.factory import build_scanners
from gateway.guards.scanners.judge import LlamaGuard
from gateway.identity.authenticator import Authenticator
from gateway.metering.estimate import Estimator
from gateway.metering.window_usage import WindowUsage
from gateway.observe.accounting import Accounting
from gateway.observe.backend_watch import BackendWatch
from gateway.observe.ledger import Ledger
from gateway.observe.metrics import Metrics
from gateway.observe.receipts import Receipts
from gateway.observe.window_usage import read_window_usage
from gateway.pipeline import Pipeline, SideCalls, UpstreamPipeline
from gateway.policy import schema
from gateway.policy.advice import has_calendar_limits, has_limits
from gateway.policy.loader import Loaded
from gateway.policy.revoked_keys import RevokedKeys
from gateway.quota.quotas import Quotas
from gateway.rendered import RenderedCache
from gateway.routing.affinity import Affinity
from gateway.routing.router import Router
from gateway.routing.shadow import Shadows
from gateway.sidecar.client import NoSidecar, SidecarClient
from gateway.sidecar.readiness import unready
from gateway.sidecar.requirements import has_heads
from gateway.stores.memory import MemoryStore
from gateway.stores.redis import RedisStore
from gateway.stores.store import Store
from gateway.types import Backend, Handler

log = logging.getLogger(__name__)


class Closable(Protocol):
    async def aclose(self) -> None: ...


@dataclass(eq=False)
class Runtime:
    """A policy and all that serves it. Requests hold on to the one they started with."""

    policy: schema.Policy
    authenticator: Authenticator
    backends: Mapping[str, Backend]
    engines: Mapping[str, EngineState]
    receipts: Receipts
    quotas: Quotas
    ledger: Ledger | None
    accounting: Accounting
    caches: Caches
    flags: BackgroundScans
    rendered: RenderedCache
    handler: Handler
    """Answers calls to models."""
    moderator: Handler
    """Answers ``/v1/moderations``."""
    counter: Handler
    """Answers ``/v1/messages/count_tokens``."""
    readiness: Readiness
    created: int = field(default_factory=lambda: int(time.time()))
    resources: frozenset[Closable] = frozenset()
    """What is to be closed once no policy in use has it any more."""
    _users: int = 0
    _unused: asyncio.Event = field(default_factory=asyncio.Event)

    def in_use(self) -> Self:
        """``with`` it for the length of a request: nothing that it may need is closed meanwhile."""
        return self

    def __enter__(self) -> None:
        self._users += 1
        self._unused.clear()

    def __exit__(self, *error: object) -> None:
        self._users -= 1
        if not self._users:
            self._unused.set()

    async def unused(self) -> None:
        if self._users:
            await self._unused.wait()


class Generations:
    """The runtime in force, and its replacement: what is configured as before lives on.

    So does what a worker has learned: which backends are sick, how fast they are, how full, who holds which prefix.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        folder: Path = Path("policies"),
        state_dir: Path = Path(".tollgate"),
        workers: int = 1,
        worker: int = 1,
        dev_key_sha256: str | None = None,
        sidecar: Path | None = None,
        transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
        scanning: ProcessPool | None = None,
    ) -> None:
        """``sidecar`` is the socket of the process that runs the small models.

        ``scanning`` is where guards read what may take long; without it they read all texts on the event loop.

        ``transport`` takes the place of the network, for tests.
        """
        self._metrics = metrics
        self._folder = folder
        self._state_dir = state_dir
        self._dev_key_sha256 = dev_key_sha256
        self._transport = transport
        self._scanning = scanning
        self._outgoing = (transport or AiohttpTransport)()
        """For what backends do not fetch."""
        self._sidecar: SidecarClient | NoSidecar = (
            SidecarClient(sidecar) if sidecar is not None else NoSidecar()
        )
        self._estimator = Estimator()
        self._words = Classifier.load()
        self._embedded = Embedded.load(self._words, self._sidecar)
        self._pools = Pools(workers, worker)
        self._health = HealthRegistry(listener=BackendWatch(metrics))
        self._affinity = Affinity()
        self._shadows = Shadows()
        self._current: Runtime | None = None
        self._live: list[Runtime] = []
        """Those that a request may still be using, the current one among them."""
        self._retiring: set[asyncio.Task[None]] = set()

    def current(self) -> Runtime:
        if self._current is None:
            raise RuntimeError("no policy has been taken up yet")
        return self._current

    async def take_up(self, loaded: Loaded) -> None:
        """Make ``loaded`` the policy for every request from now on."""
        before = self._current
        policy = loaded.policy
        backends = {
            name: self._kept(name, config) or self._backend(name, config)
            for name, config in policy.backends.items()
            if name not in loaded.disabled
        }
        for name in backends:
            if before is not None and before.backends.get(name) is not backends[name]:
                self._health.credentials_accepted(name)  # it may have another key now
        same_store = before is not None and before.policy.store == policy.store
        same_caches = before is not None and before.policy.where_caches_are == policy.where_caches_are
        receipts = before.receipts if before and same_caches else Receipts(_store(policy.where_caches_are))
        quotas = before.quotas if before and same_store else Quotas.open(policy, estimator=self._estimator)
        ledger = self._ledger(policy.ledger)
        if has_limits(policy):
            quotas.watch()
        if ledger is not None and has_calendar_limits(policy):
            quotas.remember(await asyncio.to_thread(_spent, ledger.path))
        pollers = {name: self._poller(name, policy.backends[name]) for name in backends}
        authenticator = Authenticator(
            policy,
            self._folder,
            self._outgoing,
            dev_key_sha256=self._dev_key_sha256,
            before=before.authenticator if before else None,
        )
        self._pools.update(policy)
        update_terms(policy, self._pools)
        caches = Caches.open(
            policy,
            is_time_sensitive=is_time_sensitive,
            sidecar=self._sidecar,
            before=before.caches if before else None,
        )
        router = Router(policy, backends.keys(), self._pools, self._affinity)
        upstream = UpstreamPipeline(
            backends=backends,
            router=router,
            health=self._health,
            pools=self._pools,
            metrics=self._metrics,
        )
        answering = upstream.handler()
        accounting = Accounting(self._metrics, ledger)
        side_calls = SideCalls(quotas, accounting)
        judges = {
            name: LlamaGuard(
                guard.judge, policy, side_calls.stage(answering), local_only=guard.action == "local"
            )
            for name, guard in policy.guards.items()
            if isinstance(guard, schema.InjectionGuard | schema.ToxicityGuard) and guard.judge
        }
        scanners = build_scanners(policy, self._sidecar, judges)
        guards = Guards(policy, scanners, build_offloads(policy, self._scanning, judges))
        flags = BackgroundScans(self._metrics, receipts.keep)
        pipeline = Pipeline(
            metrics=self._metrics,
            receipts=receipts,
            accounting=accounting,
            quotas=quotas,
            guards=guards,
            flags=flags,
            caches=caches,
            # The embedding is free where something else wants it, too; for a route alone it is not worth a process.
            judge=self._embedded if has_heads(policy) else self._words,
            shadows=self._shadows,
            side_calls=side_calls,
        )
        moderator = Moderator.of(policy.guards, self._sidecar, judges, self._scanning)
        engines = {name: poller for name, poller in pollers.items() if poller is not None}
        readiness = Readiness(
            backends,
            needed=[name for name in backends if _runs_here(policy.backends[name])],
            # An engine's proof is a token that it decoded; others only show that they are there.
            proven=lambda name: self._backend_recovered(name) if name in engines else None,
            trouble=self._health.problem,
            guards=unready(policy, self._sidecar),
            standing=Standing(policy, backends.keys()),
            store=partial(quotas.closed, policy),
        )
        owned: list[Closable | None] = [
            readiness,
            *backends.values(),
            *engines.values(),
            receipts,
            quotas,
            ledger,
            authenticator,
            *caches.resources,
        ]
        self._current = Runtime(
            policy=policy,
            authenticator=authenticator,
            backends=backends,
            engines=engines,
            receipts=receipts,
            quotas=quotas,
            ledger=ledger,
            accounting=accounting,
            caches=caches,
            flags=flags,
            rendered=RenderedCache(
                caches, guards, quotas, metrics=self._metrics, receipts=receipts, accounting=accounting
            ),
            handler=pipeline.handler(answering),
            moderator=pipeline.recorded(moderator.handle),
            counter=pipeline.counter(upstream),
            readiness=readiness,
            resources=frozenset(resource for resource in owned if resource is not None),
        )
        self._live.append(self._current)
        self._metrics.policy_generation.inc()
        for name, reason in loaded.disabled.items():
            log.warning("backend '%s' is disabled: %s", name, reason)
        if before is not None:
            task = asyncio.create_task(self._retire(before))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def withdraw(self, withdrawn: RevokedKeys) -> None:
        """Refuse these keys of the policy in force, whatever it says itself."""
        self.current().authenticator.withdraw(withdrawn)

    async def aclose(self) -> None:
        """Close everything, whether it is still in use or not."""
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        await self._shadows.aclose()
        await asyncio.gather(*(runtime.flags.aclose() for runtime in self._live))
        live, self._live = self._live, []
        resources = {resource for runtime in live for resource in runtime.resources}
        await asyncio.gather(*(resource.aclose() for resource in resources))
        await self._outgoing.aclose()
        await self._sidecar.aclose()

    def _kept(self, name: str, config: schema.Backend) -> Backend | None:
        if self._current is None or self._current.policy.backends.get(name) != config:
            return None
        return self._current.backends.get(name)

    def _backend(self, name: str, config: schema.Backend) -> Backend:
        transport = self._transport() if self._transport is not None else None
        match config:
            case schema.FakeBackend():
                return FakeBackend(name, config)
            case schema.EngineBackend():
                root = config.base_url.rstrip("/")
                return OpenAIBackend(
                    name,
                    base_url=root + "/v1",
                    probe_url=root + "/health",
                    transport=transport,
                    hints=True,
                    streams=config.streams,
                )
            case schema.AnthropicBackend():
                return AnthropicBackend(
                    name,
                    base_url=config.base_url,
                    transport=transport,
                    api_key=_secret(config.api_key),
                    max_tokens=config.max_tokens,
                    streams=config.streams,
                )
            case schema.SidecarBackend():
                return EmbedderBackend(name, self._sidecar, matryoshka=config.matryoshka)
            case schema.OpenAIBackend():
                root = config.base_url.rstrip("/")
                return OpenAIBackend(
                    name,
                    base_url=root,
                    probe_url=root + "/models",
                    transport=transport,
                    api_key=_secret(config.api_key),
                    continues=config.continues,
                    streams=config.streams,
                )

    def _poller(self, name: str, config: schema.Backend) -> EngineState | None:
        """Asks an engine how it is."""
        if not isinstance(config, schema.EngineBackend):
            return None
        if self._kept(name, config) is not None and self._current is not None:
            return self._current.engines[name]
        transport = (self._transport or AiohttpTransport)()
        return EngineState(
            config.base_url,
            transport,
            lambda figures: self._pools.update_engine(name, figures),
            on_return=lambda: self._backend_recovered(name),
        ).start()

    def _backend_recovered(self, backend: str) -> None:
        self._health.recovered(backend)

    def _ledger(self, config: schema.LedgerSettings) -> Ledger | None:
        if not config.enabled:
            return None
        before = self._current
        if before is not None and before.policy.ledger == config:
            return before.ledger
        return Ledger(self._state_dir / config.path)

    async def _retire(self, old: Runtime) -> None:
        await old.unused()
        await old.flags.aclose()
        self._live.remove(old)
        # An older generation can outlive a newer one: what any of them holds stays open.
        held = {resource for runtime in self._live for resource in runtime.resources}
        for resource in old.resources - held:
            await resource.aclose()


def _spent(path: Path) -> list[WindowUsage]:
    try:
        return read_window_usage(path, time.time())
    except sqlite3.Error as error:
        log.warning("what was spent before is not known: the ledger '%s' cannot be read (%s)", path, error)
        return []


def _runs_here(backend: schema.Backend) -> bool:
    """Whether ``tollgate serve`` has it as a child of its own."""
    match backend:
        case schema.EngineBackend():
            return backend.launch
        case schema.SidecarBackend():
            return True
    return False


def _secret(key: SecretStr | None) -> str | None:
    return key.get_secret_value() if key is not None else None


def _store(url: str) -> Store:
    # A Redis server is first contacted when it is first needed: its absence must not keep the gateway down.
    return MemoryStore() if url == "memory" else RedisStore(url)
