"""A runtime for each adapter that is asked: the one in force, with the policy in which the adapter is a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from random import Random
from typing import Any

from gateway.adapters.adapter import Adapter
from gateway.adapters.derived import policy_of, policy_of_listed, targets_of
from gateway.adapters.listed import ListedAdapter, ListedAdapters, lists_adapters
from gateway.adapters.loading import Loading, ResidentsOf
from gateway.adapters.room import AdapterRoom
from gateway.adapters.sending import Sending
from gateway.caching.caches import Caches
from gateway.errors import UnknownModel
from gateway.experiments.experiments import Experiments
from gateway.guards.guards import Guards
from gateway.pipeline import AroundSending, Pipeline, UpstreamPipeline
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
_NAMED = 20
"""Adapters that an error tells."""


Rank = Callable[[str], int | None]
"""The lower, the sooner a server is asked; None where it is not."""
_EJECTED, _FULL = 3, 2


@dataclass(eq=False)
class AdapterView(Runtime):
    """It owns nothing: all that is to be closed is its base's."""

    base: Runtime | None = None
    model: str = ""
    """The adapter's."""
    rank: Rank = lambda server: 0

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
        rank: Rank,
        loads: Loads,
        rotation: Rotation | None = None,
        **more: Any,
    ) -> None:
        super().__init__(policy, enabled, loads, affinity, random, rotation=rotation, **more)
        self._rotation = rotation
        self._rank_of = rank
        self._full = loads.saturation

    def plan(self, call: Call) -> tuple[Candidate, ...]:
        """Raises ``UnknownModel`` where no server has it any more."""
        ranked = [
            (rank, one) for one in super().plan(call) if (rank := self._rank(one.target.backend)) is not None
        ]
        if not ranked:
            raise UnknownModel.named(call.model)
        return tuple(one for _, one in sorted(ranked, key=itemgetter(0)))

    def _rank(self, backend: str) -> int | None:
        rank = self._rank_of(backend)
        if rank is None or rank > _FULL:
            return rank
        if self._rotation is not None and not self._rotation.share(backend):
            return _EJECTED
        return _FULL if self._full(backend) >= 1.0 else rank


def rank_of(adapter: Adapter, residents_of: ResidentsOf) -> Rank:
    """Of servers that load it."""

    def rank(backend: str) -> int:
        residents = residents_of(backend)
        if residents is None:
            return _FULL
        return 0 if residents.holds(adapter.id) else 1 if residents.has_room else _FULL

    return rank


class AdapterViews:
    """One policy's."""

    def __init__(
        self,
        base: Runtime,
        room: AdapterRoom,
        listed: ListedAdapters,
        pipeline: Pipeline,
        upstream: UpstreamPipeline,
        router_of: Callable[[Policy, Rank], Router],
        guards_of: Callable[[Policy], Guards],
    ) -> None:
        self.room = room
        self._listed = listed
        self._base = base
        self._pipeline = pipeline
        self._upstream = upstream
        self._router_of = router_of
        self._guards_of = guards_of
        self._views: OrderedDict[str | ListedAdapter, AdapterView] = OrderedDict()

    def find(self, principal: Principal, asked: str) -> AdapterView | None:
        """The runtime in which ``asked`` is a model; None where it names no adapter, or none that ``principal`` may
        ask. A model of the policy keeps its name, also before who may not ask it."""
        before, name, base = self._parts(asked)
        if base is None or self._base.policy.resolve(asked) is not None:
            return None
        adapter = self.room.catalogue.find(principal.tenant, base, name)
        if adapter is not None:
            if not any(map(principal.may_use, (base, before, adapter.model, asked))):
                return None
            return self._kept(adapter.id, lambda: self._made(adapter))
        listed = self._listed.find(self._base.policy, base, name, principal.tenant)
        if listed is None or not any(map(principal.may_use, (base, before, listed.model, asked))):
            return None
        if self._base.policy.resolve(listed.model) is not None:  # as where an alias of its base is asked
            return None
        return self._kept(listed, lambda: self._made_listed(listed))

    def unknown(self, principal: Principal, asked: str) -> UnknownModel:
        """What ``principal`` is told where ``find`` finds none: what there is instead."""
        before, _, base = self._parts(asked)
        if base is None or not (principal.may_use(base) or principal.may_use(before)):
            return UnknownModel.named(asked)
        if not lists_adapters(self._base.policy, base):
            return UnknownModel.named(asked)
        names = self._listed.names(self._base.policy, base, principal.tenant)
        by = base if principal.may_use(base) else before
        there = [f"{by}:{name}" for name in names if self._is_asked_by_name(principal, base, name)]
        more = f", and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
        found = f"`{'`, `'.join(there[:_NAMED])}`{more}" if there else "none"
        return UnknownModel.named(asked, f" Adapters that the servers of `{base}` list now: {found}.")

    def uploaded(self, principal: Principal) -> list[Adapter]:
        """Those of tenants that ``principal`` may ask, and that are served."""
        policy = self._base.policy
        return [
            one
            for one in self.room.catalogue.of(principal.tenant)
            if (principal.may_use(one.base) or principal.may_use(one.model)) and targets_of(policy, one.base)
        ]

    def listed(self, principal: Principal) -> list[ListedAdapter]:
        """Those that servers list, and that ``principal`` may ask by their names."""
        policy = self._base.policy
        return [
            one
            for base in policy.models
            for one in self._listed.of(policy, base, principal.tenant)
            if (principal.may_use(base) or principal.may_use(one.model))
            and self._is_asked_by_name(principal, base, one.name)
        ]

    def _is_asked_by_name(self, principal: Principal, base: str, name: str) -> bool:
        """Whether no model of the policy and no adapter of a tenant has the name of one that a server lists."""
        taken = self._base.policy.resolve(f"{base}:{name}") is not None
        return not taken and self.room.catalogue.find(principal.tenant, base, name) is None

    def _parts(self, asked: str) -> tuple[str, str, str | None]:
        """What stands before the last colon and after it, and the model that the former is."""
        before, colon, name = asked.rpartition(":")
        return before, name, self._base.policy.resolve(before) if colon else None

    def _kept(self, key: str | ListedAdapter, make: Callable[[], AdapterView | None]) -> AdapterView | None:
        view = self._views.get(key)
        if view is None:
            view = make()
            if view is None:
                return None
            self._views[key] = view
            if len(self._views) > MOST_VIEWS:
                self._views.popitem(last=False)
        self._views.move_to_end(key)
        return view

    def _made(self, adapter: Adapter) -> AdapterView | None:
        policy = policy_of(self._base.policy, adapter)
        if policy is None or policy.adapters is None:
            return None
        residents = self.room.residents
        loading = Loading(adapter, residents, policy.adapters.load_timeout)
        return self._view(policy, adapter.base, adapter.model, rank_of(adapter, residents), loading)

    def _made_listed(self, adapter: ListedAdapter) -> AdapterView:
        policy = policy_of_listed(self._base.policy, adapter)

        def rank(server: str) -> int | None:
            return self._listed.rank(server, adapter)

        return self._view(policy, adapter.base, adapter.model, rank, Sending(adapter, self._listed))

    def _view(
        self, policy: Policy, base_model: str, model: str, rank: Rank, around: AroundSending
    ) -> AdapterView:
        base = self._base
        router = self._router_of(policy, rank)
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
        loop = upstream.handler(around)

        def counter(call: Call) -> Chunks:
            # It has its base's tokens, and is not loaded for them.
            return base.counter(replace(call, policy=base.policy, model=base_model))

        own = {one.name: getattr(base, one.name) for one in fields(Runtime)}
        changed: dict[str, Any] = {
            "policy": policy,
            "caches": caches,
            "handler": pipeline.handler(loop),
            "whole": pipeline.whole(loop),
            "counter": counter,
            "rendered": _nothing_rendered(base, pipeline),
        }
        return AdapterView(**{**own, **changed}, base=base, model=model, rank=rank)


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
