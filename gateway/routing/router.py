"""Where a call may be tried, and in which order."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from gateway.errors import (
    BadRequest,
    ContextTooLong,
    GatewayError,
    ModelUnavailable,
    UpstreamFailed,
    UpstreamTimeout,
)
from gateway.media import MEDIA, MediaKind, media_in
from gateway.policy.inputs import taken
from gateway.policy.schema import Policy, Target
from gateway.prefix_sharing import sharing
from gateway.residency import narrowed, residency_of
from gateway.routing.affinity import Affinity, Prefix, prefix_of
from gateway.routing.context_size import prompt_of, size_of
from gateway.routing.refusals import Refusals
from gateway.routing.selector import Caller, Loads, ModelTargets, Selector
from gateway.types import Call, Candidate

_Media = frozenset[MediaKind]
_TEXT: _Media = frozenset()
_Regions = frozenset[str] | None
_RouteKey = tuple[str, str, bool, _Regions, _Media, int, int]
"""A model, why it is used, whether only local backends may be, those of which regions, the kinds of media that must be
taken, and how many context lengths the request exceeds: with the answer that it asks for, and by its prompt alone."""
_Usable = Callable[[str, Target], bool]
"""Whether a model's target may be used."""
LARGER = "larger_context"
_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 30.0
"""Seconds after which a model that is out of service is worth another try: as long as it has been so, within these."""


@dataclass(frozen=True, slots=True)
class _Route:
    """What of a plan does not depend on load."""

    own: ModelTargets | None
    """Of the requested model, or its substitute; None where none of its targets can be used."""
    fallbacks: tuple[ModelTargets, ...]
    larger: tuple[ModelTargets, ...]
    """For when the model's server rejects the prompt as too long."""
    spill_over: bool
    substituted: bool
    """``own`` is that of a model with a larger context."""
    affine: bool
    plan: tuple[Candidate, ...] | None
    """Where nothing depends on load or on weights."""

    @property
    def usable(self) -> bool:
        return self.own is not None or bool(self.fallbacks)


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
    ) -> None:
        """``disabled_since``: the times (``time.monotonic``) at which backends went out of use; now, where unknown."""
        self._policy = policy
        self._enabled = frozenset(enabled)
        self._loads = loads
        self._affinity = affinity or Affinity()
        self._selector = Selector(loads, self._affinity, random or Random())
        self._local = {name for name, backend in policy.backends.items() if backend.local}
        self._has_residency = policy.has_residency
        self._local_tenants = {name for name, tenant in policy.tenants.items() if tenant.local_only}
        self._contexts = sorted({model.context for model in policy.models.values() if model.context})
        self._takes = {
            (name, target): taken(policy, name, target)
            for name, model in policy.models.items()
            for target in model.targets
        }
        self._chooses_by_media = any(kinds != MEDIA for kinds in self._takes.values())
        self._downgrades = {
            name: (tier.on_saturation.to, tier.on_saturation.at)
            for name, tier in policy.tiers.items()
            if tier.on_saturation is not None and tier.on_saturation.to is not None
        }
        self._routes: dict[_RouteKey, _Route] = {}
        """Built on demand; bounded by the combinations in the policy."""
        affine = {name for name, model in policy.models.items() if model.select == "prefix_affinity"}
        self._affinity.keep(affine)
        self.has_affinity = bool(affine)
        """Whether any model is routed by prefix affinity."""
        now = time.monotonic()
        self._disabled_since = {
            name: (disabled_since or {}).get(name, now) for name in policy.backends.keys() - self._enabled
        }
        self._whole = Router(policy, policy.backends, loads) if self._disabled_since else self
        """The same with all backends in use."""
        self._refusals = Refusals(policy, self._serving)

    def plan(self, call: Call) -> tuple[Candidate, ...]:
        """The candidates of ``call``, in order.

        These are the targets of its model, then those of the fallbacks, then those of the models with a larger
        context (``larger_context``), which are for a prompt that proves too long. A prompt known to be too
        long is sent to a larger model at once, and media only to targets that take them. Raises ``ModelUnavailable``
        where only backends that are out of use could serve it; else ``Forbidden`` where none is local and the content
        must stay, ``BadRequest`` where none takes the media, ``ContextTooLong`` where it fits none.
        """
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
        route = self._route((call.model, "primary", local, within, media, *exceeded))
        if self._downgrades and call.line is None:
            route = self._downgraded(call, route, local, within, media, exceeded)
        if route.plan is not None:
            return route.plan
        if not route.usable:
            raise self._refusal(call, local, within, media)
        prefix = self._prefix(call) if route.affine else None
        order = self._selector.order
        own = order(route.own, prefix) if route.own is not None else []
        fallbacks = [candidate for targets in route.fallbacks for candidate in order(targets, prefix)]
        plan = self._with_capacity_first(call, own, fallbacks, spill_over=route.spill_over)
        if route.substituted and own and plan[0] is own[0]:
            plan = _as_larger_context(plan)
        for targets in route.larger:
            plan += order(targets, prefix)
        if prefix is not None:
            self._remember(prefix, plan[0])
        return tuple(plan)

    def _refusal(self, call: Call, local: bool, within: _Regions, media: _Media) -> GatewayError:
        """Why there is no candidate."""
        if self._whole is self:
            return self._refusals.of(call, local, self._bounds(call.model, within), media)
        try:
            self._whole.plan(call)
        except GatewayError as error:
            return error
        return self._unavailable(call.model)

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
        targets = (target for model in self._reach(name) for target in self._policy.models[model].targets)
        since = [self._disabled_since[one.backend] for one in targets if one.backend in self._disabled_since]
        lasted = time.monotonic() - max(since)
        return ModelUnavailable.named(name, min(max(_SHORTEST_WAIT, lasted), _LONGEST_WAIT))

    def _reach(self, name: str) -> list[str]:
        """The models that may serve ``name``: itself, those with a larger context, fallbacks, and theirs."""
        leaf = self._leaf(name)
        found = [leaf] if leaf is not None else []
        for one in found:  # grows while it is read
            others = dict.fromkeys((*self._larger_models(one), *self._policy.models[one].fallbacks))
            found += [other for other in others if other not in found]
        return found

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
        tokens = call.estimate.prompt + call.estimate.expected if call.estimate is not None else 0
        caller = self._caller(call)
        if has_capacity(own[0].target.backend, tokens, caller):
            return plan
        for index, other in enumerate(others, 1):
            if has_capacity(other.target.backend, tokens, caller):
                del plan[index]
                return [Candidate(other.model, other.target, other.timeouts, "spill_over"), *plan]
        return plan

    def _residency(self, call: Call) -> _Regions:
        within = residency_of(call)
        if within is not None:
            call.receipt.note("route", residency=sorted(within))
        return within

    def _downgraded(
        self,
        call: Call,
        route: _Route,
        local: bool,
        within: _Regions,
        media: _Media,
        exceeded: tuple[int, int],
    ) -> _Route:
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
        instead = self._route((substitute, "downgrade", local, within, media, *exceeded))
        return instead if instead.own is not None else route

    def _caller(self, call: Call) -> Caller:
        tier = call.principal.tier
        return tier, call.principal.tenant, self._policy.tier(tier).weight

    def _route(self, key: _RouteKey) -> _Route:
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = self._build_route(*key)
        return route

    def _build_route(
        self,
        name: str,
        why: str,
        local: bool,
        within: _Regions,
        media: _Media,
        exceeded: int,
        by_prompt: int,
    ) -> _Route:
        first, *others = self._models(name, exceeded, by_prompt)
        within = self._bounds(name, within)
        substituted = first != self._leaf(name)
        taken: set[tuple[str, str]] = set()
        usable = partial(self._may_use, local=local, within=within, media=media)
        own = self._model_targets(first, "fallback" if substituted else why, usable, taken)
        fallbacks = self._all_targets(others, "fallback", usable, taken)
        larger_models = list(self._larger_models(first))[1:] if first is not None else []
        larger_models = [model for model in larger_models if self._fits(model, exceeded)]
        larger = self._all_targets(larger_models, LARGER, usable, taken)
        spill_over = first is not None and self._policy.models[first].spill_over and bool(fallbacks)
        all_targets = [targets for targets in (own, *fallbacks, *larger) if targets is not None]
        plan = None
        if (own or fallbacks) and not spill_over and not any(targets.varies for targets in all_targets):
            only = [candidate for targets in all_targets for candidate in targets.candidates]
            plan = tuple(_as_larger_context(only) if substituted and own else only)
        affine = any(targets.affine for targets in all_targets)
        return _Route(own, fallbacks, larger, spill_over, substituted, affine, plan)

    def _models(self, name: str, exceeded: int, by_prompt: int) -> list[str | None]:
        """The model used for ``name``, and its fallbacks, theirs after them, each of them once.

        The first is None where no model is large enough.
        """
        leaf = self._leaf(name)
        waiting = [leaf] if leaf is not None else []
        asked: list[str | None] = []
        for model in waiting:  # grows while it is read
            chain = list(self._larger_models(model))
            fit = self._fit(chain, exceeded, by_prompt)
            if not asked or (fit is not None and fit not in asked):
                asked.append(fit)
            passed = chain if fit is None else chain[: chain.index(fit) + 1]
            for one in passed:
                named = dict.fromkeys(self._policy.models[one].fallbacks)
                waiting += [fallback for fallback in named if fallback not in waiting]
        return asked or [None]

    def _fit(self, chain: Sequence[str], exceeded: int, by_prompt: int) -> str | None:
        """The first with enough context for prompt and answer, or else the one that leaves most for the answer.

        None of the latter for a model that refuses rather than have answers clipped.
        """
        for model in chain:
            if self._fits(model, exceeded):
                return model
        if self._policy.models[chain[0]].over_context != "clip":
            return None
        clips = [
            model
            for model in chain
            if self._policy.models[model].over_context == "clip" and self._fits(model, by_prompt)
        ]
        return max(clips, key=lambda model: self._policy.models[model].context or 0, default=None)

    def _fits(self, model: str, exceeded: int) -> bool:
        context = self._policy.models[model].context
        return context is None or context not in self._contexts[:exceeded]

    def _larger_models(self, model: str) -> Iterator[str]:
        """``model``, its ``larger_context``, the latter's own …, with or without targets."""
        seen: set[str] = set()
        larger: str | None = model
        while larger is not None and larger not in seen:
            seen.add(larger)
            yield larger
            larger = self._policy.models[larger].larger_context

    def _leaf(self, name: str) -> str | None:
        """The model that has the targets: a cascade's last step, or ``name`` itself.

        Only whoever asks past the stage that asks a cascade's steps, as to count tokens, names one here.
        """
        known = self._policy.resolve(name)
        steps = self._policy.models[known].cascade if known is not None else ()
        return steps[-1].model if steps else known

    def _model_targets(
        self, name: str | None, why: str, usable: _Usable, taken: set[tuple[str, str]]
    ) -> ModelTargets | None:
        """The usable targets of a model that are not ``taken`` yet; None where there are none."""
        if name is None:
            return None
        model = self._policy.models[name]
        regions: dict[str | None, list[Candidate]] = {region: [] for region in (*model.regions, None)}
        for target in model.targets:
            where = (target.backend, target.model)
            if where not in taken and usable(name, target):
                taken.add(where)
                region = self._policy.backends[target.backend].region
                group = regions[region if region in regions else None]
                group.append(Candidate(name, target, target.timeouts or model.timeouts, why))
        groups = tuple(tuple(group) for group in regions.values() if group)
        return ModelTargets(name, model.select, groups) if groups else None

    def _all_targets(
        self, names: Iterable[str | None], why: str, usable: _Usable, taken: set[tuple[str, str]]
    ) -> tuple[ModelTargets, ...]:
        all_targets = (self._model_targets(name, why, usable, taken) for name in names)
        return tuple(targets for targets in all_targets if targets is not None)

    def _may_use(self, model: str, target: Target, *, local: bool, within: _Regions, media: _Media) -> bool:
        return (
            target.backend in self._enabled
            and (not local or target.backend in self._local)
            and (not self._has_residency or self._is_within(model, target, within))
            and media <= self._takes[model, target]
        )

    def _serving(self, name: str, local: bool, within: _Regions, media: _Media) -> list[str]:
        """The models that may serve ``name``, whatever the length."""
        route = self._route((name, "primary", local, within, media, 0, 0))
        all_targets = (route.own, *route.fallbacks, *route.larger) if route.usable else ()
        return [targets.model for targets in all_targets if targets is not None]

    def _bounds(self, name: str, within: _Regions) -> _Regions:
        """Also by what is said of the model that has the targets, whichever answers in its place."""
        leaf = self._leaf(name)
        return within if leaf is None else narrowed(within, self._policy.models[leaf].residency)

    def _is_within(self, model: str, target: Target, within: _Regions) -> bool:
        region, own = self._policy.backends[target.backend].region, self._policy.models[model].residency
        return (within is None or region in within) and (not own or region in own)


def _as_larger_context(plan: list[Candidate]) -> list[Candidate]:
    """The first was chosen for its context; the others are ordinary fallbacks."""
    first = plan[0]
    return [Candidate(first.model, first.target, first.timeouts, LARGER), *plan[1:]]
