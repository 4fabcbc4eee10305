"""What a call can meet at the places where it may be sent: prices, and how long answers get."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.metering.price import Rates, at_most, dearest, price_of
from gateway.policy.prices import is_unpriced
from gateway.policy.schema import Policy, Target
from gateway.types import Call


@dataclass(frozen=True, slots=True)
class Reach:
    """A bound on one place or several."""

    rates: Rates
    kind: str = ""
    """Of the backend, where they are all of one."""
    most: int | None = None
    """Tokens that an answer has at most, as the model's policy says; None where it does not."""
    longest: int | None = None
    """The same, or what its context holds, whichever is less."""
    unasked: int | None = None
    """The cap that the backend itself sends where the caller declares none."""


class ReachBook:
    """Remembers them for the policy used last; equal ones are one object."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._first: dict[tuple[str, str], Reach] = {}
        self._targets: dict[tuple[str, str, str], Reach] = {}
        self._unpriced: dict[tuple[str, str], str | None] = {}
        self._same: dict[Reach, Reach] = {}

    def first(self, call: Call) -> Reach:
        """Of all places where ``call`` may be sent first, or as a step of a cascade."""
        self._turn_to(call.policy)
        name = (call.model, call.principal.tier)
        found = self._first.get(name)
        if found is None:
            found = _first(call.policy, *name)
            found = self._first[name] = self._same.setdefault(found, found)
        return found

    def target(self, policy: Policy, model: str, target: Target) -> Reach:
        """Of one place."""
        self._turn_to(policy)
        name = (model, target.backend, target.model)
        found = self._targets.get(name)
        if found is None:
            found = _place(policy, model, target)
            found = self._targets[name] = self._same.setdefault(found, found)
        return found

    def unpriced(self, call: Call) -> str | None:
        """A target in ``call``'s reach that costs nobody knows how much, as ``backend/model``."""
        self._turn_to(call.policy)
        name = (call.model, call.principal.tier)
        if name not in self._unpriced:
            self._unpriced[name] = _unpriced(call.policy, *name)
        return self._unpriced[name]

    def _turn_to(self, policy: Policy) -> None:
        if self._policy is not policy:
            self._policy, self._first, self._targets, self._unpriced, self._same = policy, {}, {}, {}, {}


def _place(policy: Policy, name: str, target: Target) -> Reach:
    model, backend = policy.models.get(name), policy.backends.get(target.backend)
    known = [] if model is None else [most for most in (model.max_output, model.context) if most is not None]
    return Reach(
        at_most(price_of(policy, target)),
        "" if backend is None else backend.kind,
        None if model is None else model.max_output,
        min(known, default=None),
        getattr(backend, "max_tokens", None),
    )


def _unpriced(policy: Policy, model: str, tier: str) -> str | None:
    on_saturation = policy.tier(tier).on_saturation
    waiting = [model, *([on_saturation.to] if on_saturation is not None and on_saturation.to else [])]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        found = policy.models.get(name)
        if found is None or name in seen:
            continue
        seen.add(name)
        for target in found.targets:
            if is_unpriced(policy, target):
                return f"{target.backend}/{target.model}"
        waiting += [*found.fallbacks, *(step.model for step in found.cascade)]
        waiting += [found.larger_context] if found.larger_context else []
    return None


def _first(policy: Policy, name: str, tier: str) -> Reach:
    on_saturation = policy.tier(tier).on_saturation
    downgraded = on_saturation.to if on_saturation is not None else None
    places = [place for one in (name, downgraded) if one for place in _places(policy, one, frozenset())]
    kinds = {place.kind for place in places}
    return Reach(
        dearest(place.rates for place in places),
        kinds.pop() if len(kinds) == 1 else "",
        _largest(place.most for place in places),
        _largest(place.longest for place in places),
        _largest(place.unasked for place in places),
    )


def _places(policy: Policy, name: str, above: frozenset[str]) -> list[Reach]:
    name = policy.resolve(name) or name
    model = policy.models.get(name)
    if model is None or name in above:
        return []
    found = [_place(policy, name, target) for target in model.targets]
    for step in model.cascade:
        found += _places(policy, step.model, above | {name})
    return found


def _largest(each: Iterable[int | None]) -> int | None:
    """None where any is not known."""
    known = [*each]
    return None if None in known else max((one for one in known if one is not None), default=None)
