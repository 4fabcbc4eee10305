"""Gauges that nothing counts up and down: what a worker looks at once a second, for its metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from gateway.adapters.adapter import is_adapter_id
from gateway.fallback.circuit_breaker import EVERYBODY
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.prometheus.buffers import BufferedCounter, Family
from gateway.policy.schema import DEFAULT_TIER, Policy
from gateway.quota.quotas import Quotas
from gateway.runtime.runtime import Runtime
from gateway.runtime.worker_state import WorkerState
from gateway.sidecar.api import SidecarError
from gateway.sidecar.requirements import needs_sidecar
from gateway.types import Principal

log = logging.getLogger(__name__)

INTERVAL = 1.0
PATIENCE = 1.0
"""Seconds for the sidecar, whose status waits for no model."""
BUDGETS_EVERY = 5.0
"""Seconds at least. The counters may be in Redis, and of many tenants: looking takes 5 % of the time at most."""
MOST_BUDGETS = 1_000
"""Tenants with a budget that are looked at, in the policy's order."""


class Watched(Protocol):
    """The policy folder's watcher."""

    @property
    def last_error(self) -> str | None: ...


class Sampler:
    def __init__(self, state: WorkerState, current: Callable[[], Runtime], watcher: Watched) -> None:
        self._state = state
        self._current = current
        self._watcher = watcher
        self._ledgers: dict[Ledger, tuple[int, Counter[str]]] = {}
        """Those in use, and how many of their lost rows and of models' refusals have been counted."""
        self._losses: tuple[Quotas, int] | None = None
        """Of the store in use, how many have been counted."""
        self._budgets_due = 0.0
        self._counted: dict[tuple[int, str], int] = {}
        """By a metric's identity, and a label: what has been counted."""

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            try:
                await self.sample()
            except Exception:
                log.exception("gauges could not be sampled; it is tried again")
            await asyncio.sleep(INTERVAL)

    async def sample(self) -> None:
        runtime, metrics = self._current(), self._state.metrics
        metrics.policy_rejected.set(self._watcher.last_error is not None)
        rollouts = self._state.rollouts
        metrics.rollouts_unreadable.set(0 if rollouts is None else rollouts.unreadable)
        metrics.breaker_state.sample(dict(self._breakers(runtime.policy)))
        metrics.saturation.sample({(pool.name,): pool.saturation for pool in self._state.pools})
        metrics.cached_prompts.sample(dict(self._cached()))
        self._sample_scores()
        if (listings := self._state.listings) is not None:
            listed = listings.adapters.servers()
            metrics.adapters_listed.sample(
                {(name,): float(len(its.adapters)) for name, its in listed.items()}
            )
        metrics.model_state.sample(dict.fromkeys(self._models(), 1.0))
        if runtime.rotation is not None:
            metrics.replica_share.sample(dict(runtime.rotation.shares()))
        self._sample_held()
        metrics.store_up.sample({(name,): up for name, up in runtime.stores_up.items()})
        self._sample_losses(runtime.quotas)
        self._sample_ledger(runtime.ledger)
        await self._sample_sidecar(runtime.policy)
        if time.monotonic() >= self._budgets_due:
            began = time.monotonic()
            await self._sample_budgets(runtime)
            ended = time.monotonic()
            self._budgets_due = ended + max(BUDGETS_EVERY, 20 * (ended - began))

    def _sample_held(self) -> None:
        held, metrics = self._state.held, self._state.metrics
        if held is None:
            return
        figures = held.figures
        metrics.kv_blocks.sample({(name,): float(one.blocks) for name, one in figures.items()})
        metrics.kv_events_connected.sample({(name,): float(one.connected) for name, one in figures.items()})
        metrics.kv_table_age.set(held.age or 0.0)
        for name, one in figures.items():
            self._count(metrics.kv_events, name, one.counts.events)
            self._count(metrics.kv_event_gaps, name, one.counts.gaps)
        for outcome, count in held.outcomes.items():
            self._count(metrics.prompt_ids, outcome, count)

    def _count(self, family: Family[BufferedCounter], label: str, total: int) -> None:
        """What has been counted elsewhere, from 0 on."""
        before = self._counted.get((id(family), label), 0)
        if total != before:
            self._counted[id(family), label] = total
            family[(label,)].pending += total - before if total > before else total

    def _breakers(self, policy: Policy) -> Iterator[tuple[tuple[str, str], float]]:
        places = {
            (target.backend, target.model) for model in policy.models.values() for target in model.places
        }
        yield from dict.fromkeys(places, 0.0).items()
        listings = self._state.listings
        listed = listings.adapters if listings is not None else None
        adapters: dict[tuple[str, str], float] = {}
        for backend, name, breaker in self._state.health.breakers():
            scopes = [scope for scope, _ in breaker.open_scopes()]
            state = 2.0 if EVERYBODY in scopes else float(bool(scopes))
            if backend not in policy.backends:
                continue
            if is_adapter_id(name) or (
                listed is not None and (backend, name) not in places and listed.is_asked_as(backend, name)
            ):  # tenants make them, or servers list them: of all of them the worst
                label = (backend, "adapter-*")
                adapters[label] = max(state, adapters.get(label, 0.0))
            else:
                yield (backend, name), state
        yield from adapters.items()

    def _cached(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for pool in self._state.pools:
            if (engine := pool.speed.engine) is not None and engine.prompts > 0:
                yield (pool.name,), min(1.0, engine.cached / engine.prompts)

    def _sample_scores(self) -> None:
        metrics, known = self._state.metrics, self._state.scores.known()
        speeds: dict[tuple[str, ...], float] = {
            (name,): 1 / speed for name, one in known.items() if (speed := one.speed) is not None
        }
        metrics.prefill_speed.sample(speeds)
        metrics.figures_trust.sample({(name,): one.trust for name, one in known.items()})

    def _models(self) -> Iterator[tuple[str, str, str]]:
        """Backend, model and state. An engine that is away tells none."""
        for pool in self._state.pools:
            if (engine := pool.speed.engine) is not None:
                for model, state in engine.models.items():
                    yield pool.name, model, state

    def _sample_losses(self, quotas: Quotas) -> None:
        known, counted = self._losses or (quotas, 0)
        losses = quotas.losses
        self._state.metrics.store_losses.inc(losses - (counted if known is quotas else 0))
        self._losses = (quotas, losses)

    def _sample_ledger(self, ledger: Ledger | None) -> None:
        metrics = self._state.metrics
        if ledger is not None:
            self._ledgers.setdefault(ledger, (0, Counter()))
        for one, (counted, refusals) in list(self._ledgers.items()):
            lost, refused = one.lost, one.refusals.copy()
            metrics.ledger_lost.inc(lost - counted)
            for model, count in (refused - refusals).items():
                metrics.model_refusals[(model,)].inc(count)
            self._ledgers[one] = lost, refused
            if one is not ledger and one.closed:
                del self._ledgers[one]
        metrics.ledger_waiting.set(sum(one.waiting for one in self._ledgers))

    async def _sample_sidecar(self, policy: Policy) -> None:
        metrics = self._state.metrics
        if not needs_sidecar(policy):
            metrics.sidecar_up.sample({})
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await self._state.sidecar.status()
            up = 1.0
        except (SidecarError, TimeoutError):
            up = 0.0
        metrics.sidecar_up.sample({(str(self._state.worker),): up})

    async def _sample_budgets(self, runtime: Runtime) -> None:
        """Counters in Redis are the same for all workers, of which the first looks at them."""
        policy, metrics = runtime.policy, self._state.metrics
        used: dict[tuple[str, ...], float] = {}
        over: dict[tuple[str, ...], float] = {("day",): 0.0, ("month",): 0.0}
        if policy.store != "memory" and self._state.worker != 1:
            return
        budgeted = [name for name, tenant in policy.tenants.items() if tenant.budget.model_fields_set]
        for name in budgeted[:MOST_BUDGETS]:
            principal = Principal("", name, tier=policy.tenants[name].tier or DEFAULT_TIER)
            for limit, amount, _ in await runtime.quotas.used(policy, principal):
                if limit.scope == "tenant" and limit.quantity == "dollars":
                    share = amount / limit.maximum if limit.maximum else 1.0
                    labels = (metrics.tenant(name), str(limit.window))
                    used[labels] = max(used.get(labels, 0.0), share)
                    over[(limit.window,)] += share >= 1.0
        metrics.budget_used.sample(used)
        metrics.over_budget.sample(over)
