"""Where a call may be tried, and in which order."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Protocol

from gateway.errors import (
    BadRequest,
    ContextTooLong,
    GatewayError,
    ModelUnavailable,
    UpstreamFailed,
    UpstreamTimeout,
)
from gateway.media import media_in
from gateway.policy.members import Members
from gateway.policy.schema import Policy, Target
from gateway.prefix_sharing import sharing
from gateway.residency import residency_of
from gateway.routing.affinity import Affinity, Prefix, prefix_of
from gateway.routing.context_size import prompt_of, size_of
from gateway.routing.refusals import Refusals
from gateway.routing.replica_selector import ReplicaSelector, Rotation
from gateway.routing.routes import ROLLOUT, Media, Regions, Route, Routes, as_larger_context
from gateway.routing.scored import Scored
from gateway.routing.selector import Caller, Loads, Selector
from gateway.routing.split_key import split_key
from gateway.routing.substitutes import Substitutes
from gateway.types import Call, Candidate

_TEXT: Media = frozenset()
_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 30.0
"""Seconds after which a model that is out of service is worth another try: as long as it has been so, within these."""


class Rollouts(Protocol):
    def is_new(self, experiment: str, key: bytes, /) -> bool:
        """Whether ``key`` goes to the target that is rolled out."""
        ...


class Router:
    """One policy's. ``enabled`` names the backends that are in use; what the others would serve is refused for a while
    only (``ModelUnavailable``)."""

    def __init__(
        self,
        policy: Policy,
        enabled: Collection[str],
        loads: Loads,
        affinity: Affinity | None = None,
        random: Random | None = None,
        disabled_since: Mapping[str, float] | None = None,
        rollouts: Rollouts | None = None,
        members: Members | None = None,
        rotation: Rotation | None = None,
        scored: Scored | None = None,
    ) -> None:
        """``members``: the replicas that backends have, and ``rotation`` how much of its share each gets now.

        ``scored``: who puts those of models with ``select: score`` in order; without it they are drawn by weight.

        ``rollouts``: how far those of the policy have come; without it they have not begun.

        ``disabled_since``: the times (``time.monotonic``) at which backends went out of use; now, where unknown."""
        members = {name: its for name, its in (members or {}).items() if its}
        enabled = {*enabled, *members}
        self._policy = policy
        self._parents = {member.name: name for name, its in members.items() for member in its}
        self._loads = loads
        self._rollouts = rollouts
        self.scored = scored
        self._affinity = affinity or Affinity()
        self._selector = (
            ReplicaSelector(loads, self._affinity, random or Random(), members, rotation, scored)
            if rotation is not None and members
            else Selector(loads, self._affinity, random or Random(), scored)
        )
        self._has_residency = policy.has_residency
        self._local_tenants = {name for name, tenant in policy.tenants.items() if tenant.local_only}
        self._substitutes = Substitutes(policy)
        self._contexts = self._substitutes.contexts
        self._routes = Routes(policy, enabled, self._substitutes, members)
        self._chooses_by_media = self._routes.choose_by_media
        self._downgrades = {
            name: (tier.on_saturation.to, tier.on_saturation.at)
            for name, tier in policy.tiers.items()
            if tier.on_saturation is not None and tier.on_saturation.to is not None
        }
        affine = {name for name, model in policy.models.items() if model.select == "prefix_affinity"}
        self._affinity.keep(affine)
        self.has_affinity = bool(affine)
        """Whether any model is routed by prefix affinity."""
        self._by_name: dict[str, tuple[Candidate, ...]] | None = (
            None
            if self._has_residency
            or self._local_tenants
            or self._contexts
            or self._chooses_by_media
            or self._downgrades
            else {}
        )
        """Plans that depend on nothing but the model's name, as all do where the policy says no more."""
        now = time.monotonic()
        self._disabled_since = {
            name: (disabled_since or {}).get(name, now) for name in policy.backends.keys() - enabled
        }
        self._whole = (
            Router(policy, policy.backends, loads, members=members) if self._disabled_since else self
        )
        """The same with all backends in use."""
        self._refusals = Refusals(policy, self._routes.serving)

    def plan(self, call: Call) -> tuple[Candidate, ...]:
        """The candidates of ``call``, in order.

        These are the targets of its model, then those of the fallbacks, then those of the models with a larger
        context (``larger_context``), which are for a prompt that proves too long. A prompt known to be too
        long is sent to a larger model at once, and media only to targets that take them. Raises ``ModelUnavailable``
        where only backends that are out of use could serve it; else ``Forbidden`` where none is local and the content
        must stay, ``BadRequest`` where none takes the media, ``ContextTooLong`` where it fits none.
        """
        by_name = self._by_name
        if by_name is not None and not call.local_only and (known := by_name.get(call.model)) is not None:
            return known
        local = call.local_only or call.principal.tenant in self._local_tenants
        exceeded = (0, 0)
        if self._contexts:
            exceeded = (
                bisect_left(self._contexts, size_of(call)),
                bisect_left(self._contexts, prompt_of(call)),
            )
        media = _TEXT
        if self._chooses_by_media and (found := media_in(call.request.messages or ())):
            media = frozenset(found)
        within = self._residency(call) if self._has_residency else None
        route = self._routes.of((call.model, "primary", local, within, media, *exceeded))
        if self._downgrades and call.line is None:
            route = self._downgraded(call, route, local, within, media, exceeded)
        if route.plan is not None:
            if by_name is not None and not call.local_only:
                by_name[call.model] = route.plan
            return route.plan
        if not route.usable:
            raise self._refusal(call, local, within, media)
        if route.experiment is not None:
            is_new = self._is_new(call, route.experiment)
            # Within an arm of an experiment, that is what the ledger's row is of.
            place = "rollout" if call.arm else "experiment"
            call.receipt.note(place, name=route.experiment, arm="new" if is_new else "control")
            if is_new:
                route = self._routes.of((call.model, ROLLOUT, local, within, media, *exceeded))
        prefix = self._prefix(call) if route.affine else None
        order, split = self._selector.order, call if route.splits else None
        own = order(route.own, prefix, split) if route.own is not None else []
        fallbacks = [candidate for targets in route.fallbacks for candidate in order(targets, prefix, split)]
        plan = self._with_capacity_first(call, own, fallbacks, spill_over=route.spill_over)
        if route.substituted and own and plan[0] is own[0]:
            plan = as_larger_context(plan)
        for targets in route.larger:
            plan += order(targets, prefix, split)
        if prefix is not None:
            self._remember(prefix, plan[0])
        return tuple(plan)

    def serves(self, call: Call, name: str) -> bool:
        """Whether a backend that is in use may have ``call`` for the model ``name``, by where its content may go and
        the media that are in it."""
        local = call.local_only or call.principal.tenant in self._local_tenants
        media: Media = frozenset(media_in(call.request.messages or ())) if self._chooses_by_media else _TEXT
        within = residency_of(call) if self._has_residency else None
        known = self._policy.resolve(name)
        cascade = self._policy.models[known].cascade if known is not None else ()
        asked = [step.model for step in cascade] or [name]
        return any(self._routes.of((one, "primary", local, within, media, 0, 0)).usable for one in asked)

    def _is_new(self, call: Call, experiment: str) -> bool:
        """Whether it goes to the target that is rolled out."""
        model = self._policy.resolve(call.model)
        rollout = self._policy.models[model].rollout if model is not None else None
        return (
            rollout is not None
            and self._rollouts is not None
            and self._rollouts.is_new(experiment, split_key(call, rollout.key))
        )

    def _refusal(self, call: Call, local: bool, within: Regions, media: Media) -> GatewayError:
        """Why there is no candidate."""
        if self._whole is self:
            return self._refusals.of(call, local, self._routes.bounds(call.model, within), media)
        try:
            self._whole.plan(call)
        except GatewayError as error:
            return error
        return self._unavailable(call.model)

    def passed_over(self, call: Call) -> Iterator[tuple[str, Target, str]]:
        """The targets that might serve ``call`` and are none of ``plan``'s, of which model, and why not."""
        planned = {self._place(one.model, one.target) for one in call.candidates}
        local = call.local_only or call.principal.tenant in self._local_tenants
        media: Media = frozenset(media_in(call.request.messages or ()))
        within = self._routes.bounds(call.model, residency_of(call))
        exceeded = bisect_left(self._contexts, size_of(call)) if self._contexts else 0
        for model in self._substitutes.all_of(call.model):
            for target in self._policy.models[model].targets:
                if self._place(model, target) in planned:
                    continue
                why = self._routes.why_not(model, target, local=local, within=within, media=media)
                if why is None and not self._substitutes.fits(model, exceeded):
                    why = f"its context of {self._policy.models[model].context:,} tokens is too short"
                yield model, target, why or "another model stands in for this one, or has the same target"

    def _place(self, model: str, target: Target) -> tuple[str, str, str]:
        """The same for all replicas of a backend."""
        return model, self._parents.get(target.backend, target.backend), target.model

    def deferred(self, call: Call, error: GatewayError) -> ModelUnavailable | None:
        """What to tell the caller in place of ``error``, where a backend that is out of use might have answered."""
        if self._whole is self:
            return None
        whole = self._whole.plan(call)
        missing = {(one.model, one.target): one for one in whole}
        for one in call.candidates:
            missing.pop((one.model, one.target), None)
        match error:
            case ContextTooLong():
                helps = any(one.model != call.candidates[0].model for one in missing.values())
            case BadRequest(may_suit_another=True):
                helps = bool(missing)
            case BadRequest() | UpstreamFailed() | UpstreamTimeout():
                # Of those that stand in for the model that was asked for.
                helps = call.candidates[0].why == "fallback" != whole[0].why
            case _:
                helps = False
        return self._unavailable(call.model) if helps else None

    def _unavailable(self, name: str) -> ModelUnavailable:
        targets = (
            target
            for model in self._substitutes.all_of(name)
            for target in self._policy.models[model].targets
        )
        since = [self._disabled_since[one.backend] for one in targets if one.backend in self._disabled_since]
        lasted = time.monotonic() - max(since)
        return ModelUnavailable.named(name, min(max(_SHORTEST_WAIT, lasted), _LONGEST_WAIT))

    def record_served(self, call: Call) -> None:
        """Another than the plan's first candidate answered ``call``: that one has the prefix now."""
        server = call.candidate
        if server is not None and self._policy.models[server.model].select == "prefix_affinity":
            self._remember(self._prefix(call), server)

    def _prefix(self, call: Call) -> Prefix:
        return prefix_of(call.request, call.principal.tenant, sharing(self._policy, call.model, call.request))

    def _remember(self, prefix: Prefix, candidate: Candidate) -> None:
        if self._policy.models[candidate.model].select == "prefix_affinity":
            self._affinity.remember(candidate.model, prefix, candidate)

    def _with_capacity_first(
        self, call: Call, own: list[Candidate], fallbacks: list[Candidate], *, spill_over: bool
    ) -> list[Candidate]:
        """Move a candidate first that would start at once, where the first would have to wait."""
        plan = own + fallbacks
        others = plan[1:] if spill_over else own[1:]
        if not own or not others or call.line is not None:  # which waits
            return plan
        has_capacity = self._loads.has_capacity
        estimate = call.estimated()
        tokens = estimate.prompt + estimate.expected if estimate is not None else 0
        caller = self._caller(call)
        if has_capacity(own[0].target.backend, tokens, caller):
            return plan
        for index, other in enumerate(others, 1):
            if has_capacity(other.target.backend, tokens, caller):
                del plan[index]
                return [replace(other, why="spill_over"), *plan]
        return plan

    def _residency(self, call: Call) -> Regions:
        within = residency_of(call)
        if within is not None:
            call.receipt.note("route", residency=sorted(within))
        return within

    def _downgraded(
        self,
        call: Call,
        route: Route,
        local: bool,
        within: Regions,
        media: Media,
        exceeded: tuple[int, int],
    ) -> Route:
        """The route of the model that the caller's tier is downgraded to while its own is full."""
        downgrade = self._downgrades.get(call.principal.tier)
        if downgrade is None or route.own is None or not call.request.generates:
            return route  # another model's vectors cannot be compared, and most have no voice
        substitute, at = downgrade
        saturation = self._loads.saturation
        if substitute == route.own.model:
            return route
        caller = self._caller(call)
        if any(saturation(candidate.target.backend, caller) < at for candidate in route.own.candidates):
            return route
        instead = self._routes.of((substitute, "downgrade", local, within, media, *exceeded))
        return instead if instead.own is not None else route

    def _caller(self, call: Call) -> Caller:
        tier = call.principal.tier
        return tier, call.principal.tenant, self._policy.tier(tier).weight
