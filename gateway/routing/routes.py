"""What of a plan does not depend on load: built once for all requests that are alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from gateway.media import MEDIA, MediaKind
from gateway.policy.inputs import taken
from gateway.policy.members import Members
from gateway.policy.schema import Model, Policy, Select, Target
from gateway.residency import narrowed
from gateway.routing.selector import ModelTargets
from gateway.routing.substitutes import Substitutes
from gateway.types import Arm, Candidate

Media = frozenset[MediaKind]
Regions = frozenset[str] | None
RouteKey = tuple[str, str, bool, Regions, Media, int, int]
"""A model, why it is used, whether only local backends may be, those of which regions, the kinds of media that must be
taken, and how many context lengths the request exceeds: with the answer that it asks for, and by its prompt alone."""
LARGER = "larger_context"
ROLLOUT = "rollout"
"""Why the target is asked that is rolled out."""
_Usable = Callable[[str, Target], bool]
"""Whether a model's target may be used."""


@dataclass(frozen=True, slots=True)
class Route:
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
    splits: bool
    """What keeps its target matters: of an experiment, or of weights."""
    experiment: str | None
    """The roll-out that ``own`` is the control of."""
    plan: tuple[Candidate, ...] | None
    """Where nothing depends on load or on weights."""

    @property
    def usable(self) -> bool:
        return self.own is not None or bool(self.fallbacks)


class Routes:
    """One policy's, over the backends that are ``enabled``."""

    def __init__(
        self,
        policy: Policy,
        enabled: Collection[str],
        substitutes: Substitutes,
        members: Members | None = None,
    ) -> None:
        self._policy = policy
        self._members = members or {}
        self._enabled = frozenset(enabled)
        self._substitutes = substitutes
        self._local = {name for name, backend in policy.backends.items() if backend.local}
        self._has_residency = policy.has_residency
        self._takes = {
            (name, target): taken(policy, name, target)
            for name, model in policy.models.items()
            for target in model.places
        }
        self.choose_by_media = any(kinds != MEDIA for kinds in self._takes.values())
        self._routes: dict[RouteKey, Route] = {}
        """Built on demand; bounded by the combinations in the policy."""

    def of(self, key: RouteKey) -> Route:
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = self._build(*key)
        return route

    def serving(self, name: str, local: bool, within: Regions, media: Media) -> list[str]:
        """The models that may serve ``name``, whatever the length."""
        route = self.of((name, "primary", local, within, media, 0, 0))
        all_targets = (route.own, *route.fallbacks, *route.larger) if route.usable else ()
        return [targets.model for targets in all_targets if targets is not None]

    def bounds(self, name: str, within: Regions) -> Regions:
        """Also by what is said of the model that has the targets, whichever answers in its place."""
        leaf = self._substitutes.leaf(name)
        return within if leaf is None else narrowed(within, self._policy.models[leaf].residency)

    def why_not(
        self, model: str, target: Target, *, local: bool, within: Regions, media: Media
    ) -> str | None:
        """Why a model's target may not be used, for people; None where it may. As ``_may_use`` decides."""
        backend = self._policy.backends[target.backend]
        if target.backend not in self._enabled:
            return "its backend is not in use"
        if local and target.backend not in self._local:
            return "it is not local, and this request stays on local backends"
        if self._has_residency and not self._is_within(model, target, within):
            where = "no region is stated of it" if backend.region is None else f"it is in '{backend.region}'"
            stays = sorted(within) if within is not None else sorted(self._policy.models[model].residency)
            return f"{where}, and this request stays in {' or '.join(stays) or 'no region at all'}"
        if missing := media - self._takes[model, target]:
            return f"it takes no {' and no '.join(sorted(missing))}"
        return None

    def _build(
        self,
        name: str,
        why: str,
        local: bool,
        within: Regions,
        media: Media,
        exceeded: int,
        by_prompt: int,
    ) -> Route:
        first, *others = self._substitutes.in_order(name, exceeded, by_prompt)
        within = self.bounds(name, within)
        substituted = first != self._substitutes.leaf(name)
        taken: set[tuple[str, str]] = set()
        usable = partial(self._may_use, local=local, within=within, media=media)
        own = self._model_targets(first, "fallback" if substituted else why, usable, taken)
        experiment = None
        if own is not None and not substituted and why in ("primary", ROLLOUT):
            own, experiment = self._in_experiment(own, usable, new=why == ROLLOUT)
        fallbacks = self._all_targets(others, "fallback", usable, taken)
        larger_models = list(self._substitutes.larger(first))[1:] if first is not None else []
        larger_models = [model for model in larger_models if self._substitutes.fits(model, exceeded)]
        larger = self._all_targets(larger_models, LARGER, usable, taken)
        spill_over = first is not None and self._policy.models[first].spill_over and bool(fallbacks)
        all_targets = [targets for targets in (own, *fallbacks, *larger) if targets is not None]
        plan = None
        varies = experiment is not None or any(targets.varies for targets in all_targets)
        if (own or fallbacks) and not spill_over and not varies:
            only = [candidate for targets in all_targets for candidate in targets.candidates]
            plan = tuple(as_larger_context(only) if substituted and own else only)
        affine = any(targets.affine for targets in all_targets)
        splits = experiment is not None or any(targets.splits for targets in all_targets)
        return Route(own, fallbacks, larger, spill_over, substituted, affine, splits, experiment, plan)

    def _in_experiment(
        self, own: ModelTargets, usable: _Usable, *, new: bool
    ) -> tuple[ModelTargets, str | None]:
        """As the control of the model's roll-out, or with its new target first. Requests that the new target may not
        have are in neither."""
        rollout = self._policy.models[own.model].rollout
        if rollout is None or not usable(own.model, rollout.target):
            return own, None
        experiment = rollout.experiment(own.model)
        arm = Arm(experiment, "new" if new else "control")
        groups = tuple(
            tuple(replace(one, arm=arm, why="fallback" if new else one.why) for one in group)
            for group in own.groups
        )
        if new:
            timeouts = self._policy.models[own.model].timeouts
            first = Candidate(own.model, rollout.target, timeouts, ROLLOUT, arm)
            groups = (tuple(self._each(first, "least_loaded")), *groups)
        return replace(own, groups=groups), None if new else experiment

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
                candidate = Candidate(name, target, target.timeouts or model.timeouts, why)
                group.extend(self._each(candidate, model.select))
        groups = tuple(tuple(group) for group in regions.values() if group)
        split_by = model.splits_by if model.select == "weighted" else "request"
        return ModelTargets(name, self._select(model), groups, split_by) if groups else None

    def _select(self, model: Model) -> Select:
        """Where replicas are all that there is to choose from, the least loaded, unless something else is written."""
        if len(model.targets) == 1 and model.targets[0].backend in self._members:
            return model.select if {"select", "split_by"} & model.model_fields_set else "least_loaded"
        return model.select

    def _each(self, candidate: Candidate, select: Select) -> Iterator[Candidate]:
        """``candidate``, or the replicas that its backend has. A weight by which requests are drawn is shared among
        them; one by which loads are compared is that of each."""
        target = candidate.target
        members = self._members.get(target.backend)
        if members is None:
            yield candidate
            return
        whole = sum(member.weight for member in members) if select == "weighted" else 1.0
        for member in members:
            weight = target.weight * member.weight / whole
            its = target.model_copy(update={"backend": member.name, "weight": weight})
            yield replace(candidate, target=its)

    def _all_targets(
        self, names: Iterable[str | None], why: str, usable: _Usable, taken: set[tuple[str, str]]
    ) -> tuple[ModelTargets, ...]:
        all_targets = (self._model_targets(name, why, usable, taken) for name in names)
        return tuple(targets for targets in all_targets if targets is not None)

    def _may_use(self, model: str, target: Target, *, local: bool, within: Regions, media: Media) -> bool:
        return (
            target.backend in self._enabled
            and (not local or target.backend in self._local)
            and (not self._has_residency or self._is_within(model, target, within))
            and media <= self._takes[model, target]
        )

    def _is_within(self, model: str, target: Target, within: Regions) -> bool:
        region, own = self._policy.backends[target.backend].region, self._policy.models[model].residency
        return (within is None or region in within) and (not own or region in own)


def as_larger_context(plan: list[Candidate]) -> list[Candidate]:
    """The first was chosen for its context; the others are ordinary fallbacks."""
    first = plan[0]
    return [Candidate(first.model, first.target, first.timeouts, LARGER), *plan[1:]]
