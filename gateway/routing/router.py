"""Where a call may be tried, and in which order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from gateway.errors import ContextTooLong, Forbidden, GatewayError, UnknownModel
from gateway.metering.estimate import declared_cap
from gateway.policy.schema import Policy, Target
from gateway.prefixes import sharing
from gateway.routing.affinity import Affinity, Prefix, prefix_of
from gateway.routing.selector import Leg, Loads, Selector
from gateway.types import Call, Candidate, ChatRequest

_Terms = tuple[str, str, bool, int, int]
"""A model, why it is asked, whether only local backends may be, and how many contexts the request has outgrown: with
the answer that it asks for, and by its prompt alone."""


@dataclass(frozen=True, slots=True)
class _Route:
    """All that can be known of a plan before it is needed."""

    own: Leg | None
    """Of the model asked for, or of what stands in for it; None where it has no target to offer."""
    fallbacks: tuple[Leg, ...]
    larger: tuple[Leg, ...]
    """For when the model's server finds the prompt too long after all."""
    spill_over: bool
    stands_in: bool
    """``own`` is that of a model with a larger context."""
    affine: bool
    plan: tuple[Candidate, ...] | None
    """Where nothing is left to choose."""

    @property
    def usable(self) -> bool:
        return self.own is not None or bool(self.fallbacks)


class Router:
    """One policy's. ``enabled`` names the backends that can be used at all."""

    def __init__(
        self,
        policy: Policy,
        enabled: Collection[str],
        loads: Loads,
        affinity: Affinity | None = None,
        random: Random | None = None,
    ) -> None:
        self._policy = policy
        self._enabled = frozenset(enabled)
        self._loads = loads
        self._affinity = affinity or Affinity()
        self._selector = Selector(loads, self._affinity, random or Random())
        self._local = {name for name, backend in policy.backends.items() if backend.local}
        self._local_tenants = {name for name, tenant in policy.tenants.items() if tenant.local_only}
        self._contexts = sorted({model.context for model in policy.models.values() if model.context})
        self._downgrades = {
            name: (tier.on_saturation.to, tier.on_saturation.at)
            for name, tier in policy.tiers.items()
            if tier.on_saturation is not None and tier.on_saturation.to is not None
        }
        self._routes: dict[_Terms, _Route] = {}
        """Made when first needed; there are no more than the policy has combinations."""
        affine = {name for name, model in policy.models.items() if model.select == "prefix_affinity"}
        self._affinity.keep(affine)
        self.has_affinity = bool(affine)
        """Whether any model's requests are to be remembered."""

    def plan(self, call: Call) -> tuple[Candidate, ...]:
        """The places where ``call`` may be tried, in order.

        These are the targets of its model, then those of the fallbacks, then those of the models with a larger
        context (``larger_context``), which are meant for a prompt that proves too long. A prompt known to be too
        long goes to a larger model from the start. Raises ``UnknownModel`` where no backend is enabled,
        ``Forbidden`` where none of them is local and the content must stay, ``ContextTooLong`` where it fits none.
        """
        local = call.local_only or call.principal.tenant in self._local_tenants
        outgrown = (0, 0)
        if self._contexts:
            outgrown = (bisect_left(self._contexts, _size(call)), bisect_left(self._contexts, _prompt(call)))
        route = self._route((call.model, "primary", local, *outgrown))
        if self._downgrades:
            route = self._downgraded(call, route, local, outgrown)
        if route.plan is not None:
            return route.plan
        if not route.usable:
            raise self._refusal(call, local)
        prefix = self._prefix(call) if route.affine else None
        order = self._selector.order
        own = order(route.own, prefix) if route.own is not None else []
        fallbacks = [candidate for leg in route.fallbacks for candidate in order(leg, prefix)]
        plan = self._with_room_first(call, own, fallbacks, spill_over=route.spill_over)
        if route.stands_in and own and plan[0] is own[0]:
            plan = _stood_in(plan)
        for leg in route.larger:
            plan += order(leg, prefix)
        if prefix is not None:
            self._remember(prefix, plan[0])
        return tuple(plan)

    def served(self, call: Call) -> None:
        """Tell that another than the plan's first candidate answered ``call``: it has the prefix now."""
        server = call.candidate
        if server is not None and self._policy.models[server.model].select == "prefix_affinity":
            self._remember(self._prefix(call), server)

    def _prefix(self, call: Call) -> Prefix:
        return prefix_of(call.request, call.principal.tenant, sharing(self._policy, call.model, call.request))

    def _remember(self, prefix: Prefix, candidate: Candidate) -> None:
        if self._policy.models[candidate.model].select == "prefix_affinity":
            self._affinity.remember(candidate.model, prefix, candidate)

    def _with_room_first(
        self, call: Call, own: list[Candidate], fallbacks: list[Candidate], *, spill_over: bool
    ) -> list[Candidate]:
        """Another comes first where the first would have to wait and that one would not."""
        plan = own + fallbacks
        others = plan[1:] if spill_over else own[1:]
        if not own or not others:
            return plan
        has_capacity = self._loads.has_capacity
        tokens = call.estimate.prompt + call.estimate.expected if call.estimate is not None else 0
        if has_capacity(own[0].target.backend, tokens):
            return plan
        for index, other in enumerate(others, 1):
            if has_capacity(other.target.backend, tokens):
                del plan[index]
                return [Candidate(other.model, other.target, other.timeouts, "spill_over"), *plan]
        return plan

    def _downgraded(self, call: Call, route: _Route, local: bool, outgrown: tuple[int, int]) -> _Route:
        """The route of the model that the caller's tier is to put up with while its own is full."""
        downgrade = self._downgrades.get(call.principal.tier)
        if downgrade is None or route.own is None or call.request.embeds:
            return route  # a lesser model's vectors are others, where it has any
        lesser, at = downgrade
        saturation = self._loads.saturation
        if lesser == route.own.model:
            return route
        if any(saturation(candidate.target.backend) < at for candidate in route.own.candidates):
            return route
        instead = self._route((lesser, "downgrade", local, *outgrown))
        return instead if instead.own is not None else route

    def _route(self, terms: _Terms) -> _Route:
        route = self._routes.get(terms)
        if route is None:
            route = self._routes[terms] = self._explore(*terms)
        return route

    def _explore(self, name: str, why: str, local: bool, outgrown: int, by_prompt: int) -> _Route:
        first, *others = self._models(name, outgrown, by_prompt)
        stands_in = first != self._leaf(name)
        taken: set[tuple[str, str]] = set()
        own = self._leg(first, "fallback" if stands_in else why, local, taken)
        fallbacks = self._legs(others, "fallback", local, taken)
        stand_ins = list(self._stand_ins(first))[1:] if first is not None else []
        stand_ins = [model for model in stand_ins if self._fits(model, outgrown)]
        larger = self._legs(stand_ins, "larger_context", local, taken)
        spill_over = first is not None and self._policy.models[first].spill_over and bool(fallbacks)
        legs = [leg for leg in (own, *fallbacks, *larger) if leg is not None]
        plan = None
        if (own or fallbacks) and not spill_over and not any(leg.varies for leg in legs):
            only = [candidate for leg in legs for candidate in leg.candidates]
            plan = tuple(_stood_in(only) if stands_in and own else only)
        affine = any(leg.affine for leg in legs)
        return _Route(own, fallbacks, larger, spill_over, stands_in, affine, plan)

    def _models(self, name: str, outgrown: int, by_prompt: int) -> list[str | None]:
        """What is asked in place of ``name``, and its fallbacks, theirs after them, each of them once.

        The first is None where no model is large enough.
        """
        leaf = self._leaf(name)
        waiting = [leaf] if leaf is not None else []
        asked: list[str | None] = []
        for model in waiting:  # grows while it is read
            chain = list(self._stand_ins(model))
            fit = self._fit(chain, outgrown, by_prompt)
            if not asked or (fit is not None and fit not in asked):
                asked.append(fit)
            passed = chain if fit is None else chain[: chain.index(fit) + 1]
            for one in passed:
                named = dict.fromkeys(self._policy.models[one].fallbacks)
                waiting += [fallback for fallback in named if fallback not in waiting]
        return asked or [None]

    def _fit(self, chain: Sequence[str], outgrown: int, by_prompt: int) -> str | None:
        """The first that takes the prompt and all of the answer, or else that leaves the answer the most room.

        None of the latter for a model that refuses rather than have answers clipped.
        """
        for model in chain:
            if self._fits(model, outgrown):
                return model
        if self._policy.models[chain[0]].over_context != "clip":
            return None
        clips = [
            model
            for model in chain
            if self._policy.models[model].over_context == "clip" and self._fits(model, by_prompt)
        ]
        return max(clips, key=lambda model: self._policy.models[model].context or 0, default=None)

    def _fits(self, model: str, outgrown: int) -> bool:
        context = self._policy.models[model].context
        return context is None or context not in self._contexts[:outgrown]

    def _stand_ins(self, model: str) -> Iterator[str]:
        """``model``, the one with a larger context, the one with a still larger one …, targets or not."""
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

    def _leg(self, name: str | None, why: str, local: bool, taken: set[tuple[str, str]]) -> Leg | None:
        """The targets of a model that may be used and are not ``taken`` yet; None where there are none."""
        if name is None:
            return None
        model = self._policy.models[name]
        regions: dict[str | None, list[Candidate]] = {region: [] for region in (*model.regions, None)}
        for target in model.targets:
            where = (target.backend, target.model)
            if where not in taken and self._may_use(target, local):
                taken.add(where)
                region = self._policy.backends[target.backend].region
                group = regions[region if region in regions else None]
                group.append(Candidate(name, target, target.timeouts or model.timeouts, why))
        groups = tuple(tuple(group) for group in regions.values() if group)
        return Leg(name, model.select, groups) if groups else None

    def _legs(
        self, names: Iterable[str | None], why: str, local: bool, taken: set[tuple[str, str]]
    ) -> tuple[Leg, ...]:
        legs = (self._leg(name, why, local, taken) for name in names)
        return tuple(leg for leg in legs if leg is not None)

    def _may_use(self, target: Target, local: bool) -> bool:
        return target.backend in self._enabled and (not local or target.backend in self._local)

    def _refusal(self, call: Call, local: bool) -> GatewayError:
        """Why there is nowhere to go."""
        name = call.model
        fitting = self._route((name, "primary", local, 0, 0))
        if fitting.usable:
            legs = (fitting.own, *fitting.fallbacks, *fitting.larger)
            return self._too_long(call, [leg.model for leg in legs if leg is not None])
        if local and self._route((name, "primary", False, 0, 0)).usable:
            return Forbidden(
                f"This request is to stay on local backends, and the model '{name}' has none. Choose another model, "
                "or ask the operator for a target or fallback on a backend with 'local: true'.",
                param="model",
                code="local_only",
            )
        return UnknownModel(
            f"The model '{name}' is configured here, but none of its backends is enabled.", param="model"
        )

    def _too_long(self, call: Call, models: Iterable[str]) -> GatewayError:
        largest = max(self._policy.models[model].context or 0 for model in models)
        cap = declared_cap(call.request.params)
        param = "prompt" if call.request.messages is None else "messages"
        if cap is not None:
            asked = (
                f"you requested about {_size(call)} tokens ({_prompt(call)} in the {param}, {cap} in the completion). "
                f"Please reduce the length of the {param} or completion."
            )
        else:
            asked = f"your {param} resulted in about {_prompt(call)} tokens. Please reduce the length of the {param}."
        # In OpenAI's words: clients tell this error from others by them.
        return ContextTooLong(
            f"This model's maximum context length is {largest} tokens. However, {asked}",
            status=400,
            type="invalid_request_error",
            param=param,
            code="context_length_exceeded",
        )


def _stood_in(plan: list[Candidate]) -> list[Candidate]:
    """The first is there for its context; where it fails, the others are fallbacks like any other."""
    first = plan[0]
    return [Candidate(first.model, first.target, first.timeouts, "larger_context"), *plan[1:]]


def _size(call: Call) -> int:
    """The tokens of prompt and answer that one sequence may come to; 0 where nothing is known."""
    return _prompt(call) + (declared_cap(call.request.params) or 0) if call.estimate is not None else 0


def _prompt(call: Call) -> int:
    tokens = call.estimate.prompt if call.estimate is not None else 0
    return tokens // _prompts(call.request)


def _prompts(request: ChatRequest) -> int:
    """How many prompts the request holds, each of which has the context for itself."""
    prompt = request.prompt
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
