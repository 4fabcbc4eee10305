"""What a call can meet at the targets it may be sent to: prices, and lengths of answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from gateway.apis import Api
from gateway.metering.media_tokens import ANY_MODEL, MediaBounds
from gateway.metering.price import Rates, at_most, dearest, price_of
from gateway.metering.unit_price import UnitRates
from gateway.policy.prices import is_unpriced_for
from gateway.policy.schema import Policy, Target
from gateway.types import Call


@dataclass(frozen=True, slots=True)
class TargetBounds:
    """Bounds on one target, or on several."""

    rates: Rates
    kind: str = ""
    """Of the backend, where they are all of one."""
    max_output: int | None = None
    """The longest answer, in tokens, by the model's policy; None where it has no limit."""
    max_answer: int | None = None
    """The same, or the model's context, whichever is less."""
    default_cap: int | None = None
    """The cap that the backend itself sends where the caller declares none."""
    media: MediaBounds = ANY_MODEL
    """The most tokens that pictures, sound and files can take."""
    units: tuple[UnitRates, ...] = ()
    """Prices of what is not billed by tokens."""


class TargetBoundsCache:
    """Those of the policy used last; equal ones are one object."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._first: dict[tuple[str, str], TargetBounds] = {}
        self._targets: dict[tuple[str, str, str], TargetBounds] = {}
        self._unpriced: dict[tuple[str, str, Api | None], str | None] = {}
        self._same: dict[TargetBounds, TargetBounds] = {}

    def first(self, call: Call) -> TargetBounds:
        """Of all targets that ``call`` may be sent to first, or as a step of a cascade."""
        if self._policy is not call.policy:
            self._use(call.policy)
        name = (call.model, call.principal.tier)
        found = self._first.get(name)
        if found is None:
            found = _first(call.policy, *name)
            found = self._first[name] = self._same.setdefault(found, found)
        return found

    def target(self, policy: Policy, model: str, target: Target) -> TargetBounds:
        """Of one target."""
        if self._policy is not policy:
            self._use(policy)
        name = (model, target.backend, target.model)
        found = self._targets.get(name)
        if found is None:
            found = _of_target(policy, model, target)
            found = self._targets[name] = self._same.setdefault(found, found)
        return found

    def unpriced(self, call: Call) -> str | None:
        """A target that ``call`` may be sent to and that has no price, as ``backend/model``."""
        if self._policy is not call.policy:
            self._use(call.policy)
        name = (call.model, call.principal.tier, call.request.api)
        if name not in self._unpriced:
            self._unpriced[name] = _unpriced(call.policy, *name)
        return self._unpriced[name]

    def _use(self, policy: Policy) -> None:
        self._policy, self._first, self._targets, self._unpriced, self._same = policy, {}, {}, {}, {}


def _of_target(policy: Policy, name: str, target: Target) -> TargetBounds:
    model, backend = policy.models.get(name), policy.backends.get(target.backend)
    known = [] if model is None else [most for most in (model.max_output, model.context) if most is not None]
    price = price_of(policy, target)
    return TargetBounds(
        at_most(price),
        "" if backend is None else backend.kind,
        None if model is None else model.max_output,
        min(known, default=None),
        getattr(backend, "max_tokens", None),
        MediaBounds.of("" if backend is None else backend.kind, target.model),
        () if price is None else (UnitRates.of(price),),
    )


def _unpriced(policy: Policy, model: str, tier: str, api: Api | None) -> str | None:
    on_saturation = policy.tier(tier).on_saturation
    waiting = [model, *([on_saturation.to] if on_saturation is not None and on_saturation.to else [])]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        found = policy.models.get(name)
        if found is None or name in seen:
            continue
        seen.add(name)
        for target in found.places:
            if is_unpriced_for(policy, target, api):
                return f"{target.backend}/{target.model}"
        waiting += [*found.fallbacks, *(step.model for step in found.cascade)]
        waiting += [found.larger_context] if found.larger_context else []
    return None


def _first(policy: Policy, name: str, tier: str) -> TargetBounds:
    on_saturation = policy.tier(tier).on_saturation
    downgraded = on_saturation.to if on_saturation is not None else None
    targets = [target for one in (name, downgraded) if one for target in _of_model(policy, one, frozenset())]
    kinds = {target.kind for target in targets}
    return TargetBounds(
        dearest(target.rates for target in targets),
        kinds.pop() if len(kinds) == 1 else "",
        _largest(target.max_output for target in targets),
        _largest(target.max_answer for target in targets),
        _largest(target.default_cap for target in targets),
        reduce(MediaBounds.or_more, (target.media for target in targets)) if targets else ANY_MODEL,
        tuple(dict.fromkeys(rates for target in targets for rates in target.units)),
    )


def _of_model(policy: Policy, name: str, above: frozenset[str]) -> list[TargetBounds]:
    name = policy.resolve(name) or name
    model = policy.models.get(name)
    if model is None or name in above:
        return []
    found = [_of_target(policy, name, target) for target in model.places]
    for step in model.cascade:
        found += _of_model(policy, step.model, above | {name})
    return found


def _largest(each: Iterable[int | None]) -> int | None:
    """None where any is unknown."""
    known = [*each]
    return None if None in known else max((one for one in known if one is not None), default=None)
