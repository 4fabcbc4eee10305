"""The gateway of one policy, without a server: its own pipeline, over backends in simulated time.

Nothing is decided here. What is left out is what nobody would read: HTTP, receipts, the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

from gateway.caching.caches import Caches
from gateway.caching.freshness import is_time_sensitive
from gateway.guards.arm_guards import guards_of
from gateway.guards.scans.background import BackgroundScans
from gateway.identity.authenticator import key_ring
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
from gateway.runtime.backends import build_backends
from gateway.runtime.worker_state import WorkerState
from gateway.types import Call, Receipt


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
        upstream = UpstreamPipeline(
            policy=self.policy,
            backends=self.backends,
            router=router,
            health=state.health,
            pools=state.pools,
            metrics=metrics,
            scored=scored,
            positions_every=inf,  # nobody looks at them
        ).handler()
        experiments = RecordedExperiments(self.policy, world, router.serves)
        self._flags = BackgroundScans(metrics, _forget)
        pipeline = Pipeline(
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
