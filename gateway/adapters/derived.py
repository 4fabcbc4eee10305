"""A policy in which an adapter is a model: what holds of its base holds of it, but for what lets another model answer.

All that is done with a request goes by its policy: limits, prices, guards, caches, routes. In an adapter's policy its
model has the base's targets at servers that take adapters, and nothing that stands in: no fallbacks, cascades, larger
models, shadows, roll-outs, experiments and downgrades. So nothing but the adapter can answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from gateway.adapters.adapter import Adapter
from gateway.adapters.listed import ListedAdapter
from gateway.policy.prices import price_of
from gateway.policy.schema import (
    AnyBackend,
    AnyGuard,
    EngineBackend,
    Model,
    OpenAIBackend,
    Policy,
    Target,
    Tier,
)


def loads_adapters(policy: Policy) -> bool:
    """Whether any server loads what tenants upload."""
    return policy.adapters is not None and bool(policy.adapters.servers)


def takes_adapters(policy: Policy, backend: str) -> bool:
    """Whether ``backend`` is one of those whose servers load them."""
    named = policy.adapters is not None and backend in policy.adapters.servers
    return named and _can(policy.backends.get(backend))


def targets_of(policy: Policy, base: str) -> tuple[Target, ...]:
    """The targets of the model ``base`` where adapters can be; none where it is no model, or is a cascade."""
    model = policy.models.get(base)
    return () if model is None else tuple(one for one in model.targets if takes_adapters(policy, one.backend))


def policy_of(policy: Policy, adapter: Adapter) -> Policy | None:
    """None where its base is not served any more, or nowhere where adapters can be."""
    targets = targets_of(policy, adapter.base)
    if not targets:
        return None
    asked = [(one, one.model_copy(update={"model": adapter.id})) for one in targets]
    # By its id, too, which finds it beside another of its name.
    return _derived(policy, adapter.base, asked, (adapter.name, adapter.id))


def policy_of_listed(policy: Policy, adapter: ListedAdapter) -> Policy:
    """``adapter`` is as ``policy`` has it. A price of its own is its own; else it has its base's."""
    return _derived(policy, adapter.base, adapter.targets, (adapter.name,))


def _derived(
    policy: Policy, adapted: str, asked: Sequence[tuple[Target, Target]], names: Sequence[str]
) -> Policy:
    """``asked``: targets of the model ``adapted``, and what each becomes. ``names``: the adapter's, the usual one
    first."""
    name, base = f"{adapted}:{names[0]}", policy.models[adapted]
    own = base.model_copy(
        update={
            "targets": tuple(target for _, target in asked),
            "aliases": tuple(
                f"{one}:{its}"
                for one in (adapted, *base.aliases)
                for its in names
                if (one, its) != (adapted, names[0])
            ),
            "fallbacks": (),
            "spill_over": False,
            "larger_context": None,
            "shadow": None,
            "rollout": None,
        }
    )
    prices = dict(policy.prices)
    for target, its in asked:
        price = price_of(policy, target)
        if price is not None:
            members = (
                one
                for one in policy.backends
                if one == target.backend or one.startswith(f"{target.backend}@")
            )
            for member in members:
                prices.setdefault(f"{member}/{its.model}", price)
    guards = {
        key: guard.model_copy(update={"models": (*guard.models, name)})
        if guard.models != ("*",) and _is_for(guard, adapted)
        else guard
        for key, guard in policy.guards.items()
        if key not in policy.guards_of_arms
    }
    changed = {
        "models": {**_judges(policy), name: own},
        "prices": prices,
        "guards": guards,
        "experiments": {},
        "tiers": {key: _without_downgrade(tier) for key, tier in policy.tiers.items()},
    }
    # A copy by pydantic would have what the other has computed of its own fields, too.
    values = {field: getattr(policy, field) for field in type(policy).model_fields}
    return Policy.model_construct(
        _fields_set=policy.model_fields_set | changed.keys(), **{**values, **changed}
    )


def _judges(policy: Policy) -> dict[str, Model]:
    """The models that guards ask, with what may answer in their place: caches go by them. Others would be looked at for
    each adapter, for nothing."""
    waiting = [judge.model for guard in policy.guards.values() if (judge := getattr(guard, "judge", None))]
    found: dict[str, Model] = {}
    for one in waiting:  # grows while it is read
        known = policy.resolve(one)
        if known is None or known in found:
            continue
        model = found[known] = policy.models[known]
        waiting += [*model.fallbacks, *(step.model for step in model.cascade)]
        waiting += [model.larger_context] if model.larger_context else []
    return found


def _without_downgrade(tier: Tier) -> Tier:
    full = tier.on_saturation
    return tier if full is None or full.to is None else tier.model_copy(update={"on_saturation": None})


def _can(backend: AnyBackend | None) -> bool:
    return isinstance(backend, EngineBackend | OpenAIBackend)


def _is_for(guard: AnyGuard, model: str) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in guard.models)
