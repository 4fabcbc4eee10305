"""The gateway of one policy, without a server: its own pipeline, over backends in simulated time.

Nothing is decided here. What is left out is what nobody would read: HTTP, receipts, the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from random import Random

from gateway.adapters.adapter import is_adapter_name
from gateway.adapters.derived import policy_of, policy_of_listed
from gateway.adapters.listed import ListedAdapters
from gateway.caching.caches import Caches
from gateway.caching.freshness import is_time_sensitive
from gateway.experiments.experiments import Experiments
from gateway.guards.arm_guards import guards_of
from gateway.guards.scans.background import BackgroundScans
from gateway.identity.authenticator import key_ring
from gateway.lab.adapters_at_hand import base_of, list_all, uploaded
from gateway.lab.explain.at_rest import NoNetwork, alone
from gateway.lab.replay.recorded_arms import RecordedExperiments
from gateway.lab.replay.recorded_guards import recorded_scanners
from gateway.lab.replay.replay_backend import ReplayBackend, World
from gateway.metering.bill import Bill, Charge
from gateway.observe.accounting import Accounting
from gateway.observe.ended import Ended
from gateway.observe.metrics import Metrics
from gateway.pipeline import Pipeline, SideCalls, UpstreamPipeline
from gateway.policy.loader import Loaded
from gateway.policy.schema import Policy
from gateway.quota.quotas import Quotas
from gateway.routing.router import Router
from gateway.routing.scored import Scored
from gateway.runtime.adapter_views import AdapterRouter
from gateway.runtime.backends import build_backends
from gateway.runtime.worker_state import WorkerState
from gateway.types import Call, Handler, Principal, Receipt, WholeHandler


class Bills(Accounting):
    """What requests cost, for who asks; and what was sent beside them."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics, None)
        self._known: dict[str, int] = {}
        self.beside: dict[str, int] = {}
        """Nano-dollars of copies to shadow models, by tenant."""
        self.unpriced: set[str] = set()

    def record(self, call: Call, ended: Ended) -> None:
        self.unpriced.update(ended.bill.unpriced)
        if ended.bill.nanodollars:
            self._known[call.request_id] = ended.bill.nanodollars

    def record_charges(self, call: Call, charges: Sequence[Charge]) -> None:
        tenant = call.principal.tenant
        spent = sum(charge.nanodollars for charge in charges)
        self.beside[tenant] = self.beside.get(tenant, 0) + spent

    def record_for_house(self, call: Call, bill: Bill) -> None:
        """Nobody replays batches."""

    def of(self, call: Call) -> int:
        """Nano-dollars, of a request that has ended."""
        return self._known.pop(call.request_id, 0)


@dataclass(frozen=True, slots=True)
class Adapted:
    """The gateway for an adapter, with the policy in which that is a model."""

    policy: Policy
    model: str
    names: tuple[str, ...]
    """Of which who asks may use one."""
    handler: Handler
    whole: WholeHandler | None


class SimulatedGateway:
    """To be made, used and closed in a running event loop, in virtual time."""

    def __init__(self, loaded: Loaded, folder: Path, world: World, seed: int) -> None:
        self.policy: Policy = _unheard(alone(loaded.policy))
        metrics = Metrics()
        self.state = state = WorkerState(
            metrics,
            folder=folder,
            transport=NoNetwork,
            stand_in=lambda name: ReplayBackend(name, world),
            random=Random(seed),
        )
        self.keys = key_ring(self.policy, None)
        self.backends = build_backends(replace(loaded, policy=self.policy), state, None)
        state.pools.update(self.policy)
        self.bills = Bills(metrics)
        self._quotas = Quotas.open(self.policy, estimator=state.estimator)
        self._caches = Caches.open(self.policy, is_time_sensitive=is_time_sensitive)
        scored = Scored.of(self.policy, state.scores, state.pools)
        router = Router(
            self.policy,
            self.backends.keys(),
            state.pools,
            state.affinity,
            state.random,
            disabled_since=state.disabled_since(loaded.disabled),
            scored=scored,
        )
        self._disabled = loaded.disabled
        self._upstream = UpstreamPipeline(
            policy=self.policy,
            backends=self.backends,
            router=router,
            health=state.health,
            pools=state.pools,
            metrics=metrics,
            scored=scored,
            positions_every=inf,  # nobody looks at them
        )
        upstream = self._upstream.handler()
        experiments = RecordedExperiments(self.policy, world, router.serves)
        self._flags = BackgroundScans(metrics, _forget)
        self._pipeline = pipeline = Pipeline(
            policy=self.policy,
            metrics=metrics,
            receipts=None,
            accounting=self.bills,
            quotas=self._quotas,
            guards=guards_of(self.policy, recorded_scanners(self.policy), arms=experiments.by_id),
            flags=self._flags,
            caches=self._caches,
            scorer=state.scorer,
            shadows=state.shadows,
            side_calls=SideCalls(self._quotas, self.bills),
            experiments=experiments,
        )
        self.handler = pipeline.handler(upstream)
        self.whole = pipeline.whole(upstream)
        self._adapted: dict[tuple[str, str], Adapted | None] = {}

    def adapted(self, principal: Principal, asked: str) -> Adapted | None:
        """Where ``asked`` names an adapter: whatever was asked is taken to be there, where the policy lets it be."""
        if self.policy.adapters is None or ":" not in asked:
            return None
        key = (principal.tenant, asked)
        if key not in self._adapted:
            self._adapted[key] = self._adapted_for(principal.tenant, asked)
        found = self._adapted[key]
        if found is None or not any(map(principal.may_use, (*found.names, asked))):
            return None
        return found

    def _adapted_for(self, tenant: str, asked: str) -> Adapted | None:
        policy, named = self.policy, base_of(self.policy, asked)
        if named is None:
            return None
        base, name = named
        own = policy_of(policy, uploaded(base, name, tenant)) if is_adapter_name(name) else None
        if own is None:
            listed = ListedAdapters()
            list_all(listed, policy, {name: name for name in self.backends}, [f"{base}:{name}"])
            adapter = listed.find(policy, base, name, tenant)
            own = policy_of_listed(policy, adapter) if adapter is not None else None
        return self._of_policy(own, base, f"{base}:{name}") if own is not None else None

    def _of_policy(self, own: Policy, base: str, model: str) -> Adapted:
        state = self.state
        scored = Scored.of(own, state.scores, state.pools)
        router = AdapterRouter(
            own,
            self.backends.keys(),
            state.affinity,
            state.random,
            rank=lambda server: 0,
            loads=state.pools,
            disabled_since=state.disabled_since(self._disabled),
            scored=scored,
        )
        upstream = replace(self._upstream, policy=own, router=router, scored=scored).handler()
        caches = Caches(own, self._caches.answers, self._caches.semantic)
        caches.flights = self._caches.flights
        pipeline = replace(
            self._pipeline,
            policy=own,
            guards=guards_of(own, recorded_scanners(own)),
            caches=caches,
            experiments=Experiments(own),
        )
        return Adapted(own, model, (base, model), pipeline.handler(upstream), pipeline.whole(upstream))

    async def aclose(self) -> None:
        await self.state.shadows.aclose()
        await self._flags.aclose()
        for resource in (*self._caches.resources, self._quotas):
            await resource.aclose()
        await self.state.aclose()


def _forget(_tenant: str, _receipt: Receipt) -> None:
    """Nobody looks up what happened here."""


def _unheard(policy: Policy) -> Policy:
    """Nobody is told of positions in queues, which is most of what a long queue costs a replay, and decides nothing."""
    tiers = {name: tier.model_copy(update={"patience": inf}) for name, tier in policy.tiers.items()}
    return policy.model_copy(update={"tiers": tiers})
