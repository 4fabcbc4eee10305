"""A runtime for each adapter that is asked: the one in force, with the policy in which the adapter is a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

from gateway.adapters.adapter import Adapter
from gateway.adapters.derived import policy_of, targets_of
from gateway.adapters.loading import Loading, ResidentsOf
from gateway.adapters.room import AdapterRoom
from gateway.caching.caches import Caches
from gateway.experiments.experiments import Experiments
from gateway.guards.guards import Guards
from gateway.pipeline import Pipeline, UpstreamPipeline
from gateway.policy.schema import Policy
from gateway.rendered import RenderedCache
from gateway.routing.affinity import Affinity
from gateway.routing.replica_selector import Rotation
from gateway.routing.router import Router
from gateway.routing.selector import Loads
from gateway.runtime.runtime import Runtime
from gateway.types import Call, Candidate, Chunks, Principal

MOST_VIEWS = 512
"""Of one policy; those that are asked least recently are made anew."""


@dataclass(eq=False)
class AdapterView(Runtime):
    """It owns nothing: all that is to be closed is its base's."""

    base: Runtime | None = None
    model: str = ""
    """The adapter's."""

    def in_use(self) -> Any:
        return self.base

    def out_of_use(self, model: str) -> bool:
        disabled = self.readiness.disabled
        return all(target.backend in disabled for target in self.policy.models[self.model].targets)


class AdapterRouter(Router):
    """Servers that have the adapter come first, then those with room for it: unless they are full, or ejected."""

    def __init__(
        self,
        policy: Policy,
        enabled: Collection[str],
        affinity: Affinity,
        random: Random,
        *,
        adapter: Adapter,
        residents_of: ResidentsOf,
        loads: Loads,
        rotation: Rotation | None = None,
        **more: Any,
    ) -> None:
        super().__init__(policy, enabled, loads, affinity, random, rotation=rotation, **more)
        self._rotation = rotation
        self._adapter = adapter
        self._residents_of = residents_of
        self._full = loads.saturation

    def plan(self, call: Call) -> tuple[Candidate, ...]:
        plan = super().plan(call)
        return plan if len(plan) < 2 else tuple(sorted(plan, key=self._rank))

    def _rank(self, candidate: Candidate) -> int:
        backend = candidate.target.backend
        if self._rotation is not None and not self._rotation.share(backend):
            return 3  # it is ejected
        residents = self._residents_of(backend)
        if residents is None or self._full(backend) >= 1.0:
            return 2
        return 0 if residents.holds(self._adapter.id) else 1 if residents.has_room else 2


class AdapterViews:
    """One policy's."""

    def __init__(
        self,
        base: Runtime,
        room: AdapterRoom,
        pipeline: Pipeline,
        upstream: UpstreamPipeline,
        router_of: Callable[[Policy, Adapter], Router],
        guards_of: Callable[[Policy], Guards],
    ) -> None:
        self.room = room
        self._base = base
        self._pipeline = pipeline
        self._upstream = upstream
        self._router_of = router_of
        self._guards_of = guards_of
        self._views: OrderedDict[str, AdapterView] = OrderedDict()

    def find(self, principal: Principal, asked: str) -> AdapterView | None:
        """The runtime in which ``asked`` is a model; None where it names no adapter, or none that ``principal`` may
        ask."""
        before, colon, name = asked.rpartition(":")
        base = self._base.policy.resolve(before) if colon else None
        if base is None:
            return None
        adapter = self.room.catalogue.find(principal.tenant, base, name)
        if adapter is None or not any(map(principal.may_use, (base, before, adapter.model))):
            return None
        view = self._views.get(adapter.id)
        if view is None:
            view = self._made(adapter)
            if view is None:
                return None
            self._views[adapter.id] = view
            if len(self._views) > MOST_VIEWS:
                self._views.popitem(last=False)
        self._views.move_to_end(adapter.id)
        return view

    def listed(self, principal: Principal) -> list[Adapter]:
        """Those that ``principal`` may ask, and that are served."""
        policy = self._base.policy
        return [
            one
            for one in self.room.catalogue.of(principal.tenant)
            if (principal.may_use(one.base) or principal.may_use(one.model)) and targets_of(policy, one.base)
        ]

    def _made(self, adapter: Adapter) -> AdapterView | None:
        policy, base = policy_of(self._base.policy, adapter), self._base
        if policy is None or policy.adapters is None:
            return None
        router = self._router_of(policy, adapter)
        upstream = replace(self._upstream, policy=policy, router=router, scored=router.scored)
        caches = Caches(policy, base.caches.answers, base.caches.semantic)
        caches.flights = base.caches.flights
        pipeline = replace(
            self._pipeline,
            policy=policy,
            guards=self._guards_of(policy),
            caches=caches,
            experiments=Experiments(policy),
        )
        loop = upstream.handler(Loading(adapter, self.room.residents, policy.adapters.load_timeout))

        def counter(call: Call) -> Chunks:
            # It has its base's tokens, and is not loaded for them.
            return base.counter(replace(call, policy=base.policy, model=adapter.base))

        own = {one.name: getattr(base, one.name) for one in fields(Runtime)}
        changed: dict[str, Any] = {
            "policy": policy,
            "caches": caches,
            "handler": pipeline.handler(loop),
            "whole": pipeline.whole(loop),
            "counter": counter,
            "rendered": _nothing_rendered(base, pipeline),
        }
        return AdapterView(**{**own, **changed}, base=base, model=adapter.model)


def _nothing_rendered(base: Runtime, pipeline: Pipeline) -> RenderedCache:
    """Rendered answers are looked for before anybody knows what is asked."""
    return RenderedCache(
        pipeline.caches,
        pipeline.guards,
        base.quotas,
        metrics=pipeline.metrics,
        receipts=base.receipts,
        accounting=pipeline.accounting,
        is_used=False,
    )
