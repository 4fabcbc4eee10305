"""What tokens cost, by the policy's price table, in whole nano-dollars (10^-9 US$), rounded up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import orjson

from gateway.policy.prices import is_unpriced
from gateway.policy.prices import price_of as price_of
from gateway.policy.schema import Policy, Price, Target
from gateway.types import Call, ChatRequest, Demand, Usage

NANO = 10**9
_PICO_PER_NANO = 1000


def cost(policy: Policy, target: Target, usage: Usage) -> int:
    """Nano-dollars for ``usage`` at ``target``; 0 where its price is not known, which ``price_of`` tells."""
    price = price_of(policy, target)
    return 0 if price is None else priced(price, usage)


def priced(price: Price, usage: Usage) -> int:
    cached = min(usage.cached, usage.prompt)
    written = min(usage.cache_write, usage.prompt - cached)
    hour = min(usage.cache_write_1h, written)
    reasoning = min(usage.reasoning, usage.completion)
    pico = (
        (usage.prompt - cached - written) * _rate(price.input)
        + (written - hour) * _rate(_written(price))
        + hour * _rate(_written_1h(price))
        + cached * _rate(_cached(price))
        + (usage.completion - reasoning) * _rate(price.output)
        + reasoning * _rate(_reasoning(price))
    )
    return _up(pico)


class Rates(NamedTuple):
    """Pico-dollars a token."""

    prompt: int
    answer: int
    written: int = 0
    """A prompt's, where all of it may go into the provider's prompt cache."""


class PriceBook:
    """Remembers, for the policy used last, what a call to each model may cost at most."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._rates: dict[tuple[str, str], Rates] = {}
        self._unpriced: dict[tuple[str, str], str | None] = {}

    def unpriced(self, call: Call) -> str | None:
        """A target in ``call``'s reach that costs nobody knows how much, as ``backend/model``."""
        self._begin(call.policy)
        name = (call.model, call.principal.tier)
        if name not in self._unpriced:
            self._unpriced[name] = _unpriced(call.policy, *name)
        return self._unpriced[name]

    def worst_case(self, call: Call, demand: Demand) -> int:
        """The most that ``call`` may cost: at the dearest target in reach, and, in a cascade, at every step."""
        self._begin(call.policy)
        name = (call.model, call.principal.tier)
        rates = self._rates.get(name)
        if rates is None:
            rates = self._rates[name] = _of_call(call.policy, *name)
        prompt = max(rates.prompt, rates.written) if _writes_cache(call.request) else rates.prompt
        return _up(demand.prompt * prompt + demand.reserved * rates.answer)

    def _begin(self, policy: Policy) -> None:
        if self._policy is not policy:
            self._policy, self._rates, self._unpriced = policy, {}, {}


def _writes_cache(request: ChatRequest) -> bool:
    """Whether the caller marks what the provider is to keep; that costs more than to read it once."""
    asked = [request.native.body] if request.native is not None else [request.messages, request.params]
    try:
        return _MARK in orjson.dumps(asked, default=dict)
    except orjson.JSONEncodeError:
        return True


_MARK = b'"cache_control":{'


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


def _of_call(policy: Policy, model: str, tier: str) -> Rates:
    on_saturation = policy.tier(tier).on_saturation
    downgraded = on_saturation.to if on_saturation is not None else None
    return _dearest(_in_reach(policy, name, frozenset()) for name in (model, downgraded) if name)


def _in_reach(policy: Policy, name: str, above: frozenset[str]) -> Rates:
    """Of the model's own targets or steps, and of all that may stand in for it."""
    model = policy.models.get(name)
    if model is None or name in above:
        return Rates(0, 0)
    above |= {name}
    others = [*model.fallbacks, *([model.larger_context] if model.larger_context else ())]
    prices = (price_of(policy, target) for target in model.targets)
    steps = [_in_reach(policy, step.model, above) for step in model.cascade]
    return _dearest(
        (
            *(_most(price) for price in prices if price is not None),
            Rates(*(sum(kind) for kind in zip(Rates(0, 0), *steps, strict=True))),
            *(_in_reach(policy, other, above) for other in others),
        )
    )


def _dearest(rates: Iterable[Rates]) -> Rates:
    """A bound on all of them: one may have the dearer prompts and another the dearer answers."""
    known = [*rates] or [Rates(0, 0)]
    return Rates(*(max(kind) for kind in zip(*known, strict=True)))


def _most(price: Price) -> Rates:
    return Rates(
        _rate(max(price.input, _cached(price))),
        _rate(max(price.output, _reasoning(price))),
        _rate(max(_written(price), _written_1h(price))),
    )


def _cached(price: Price) -> float:
    return price.input if price.cached_input is None else price.cached_input


def _written(price: Price) -> float:
    return price.input * 1.25 if price.cache_write is None else price.cache_write


def _written_1h(price: Price) -> float:
    return price.input * 2 if price.cache_write_1h is None else price.cache_write_1h


def _reasoning(price: Price) -> float:
    return price.output if price.reasoning is None else price.reasoning


def _rate(dollars_per_million: float) -> int:
    # Whole pico-dollars a token: sums are exact, whatever float a price is.
    return round(dollars_per_million * 1e6)


def _up(pico: int) -> int:
    return -(-pico // _PICO_PER_NANO)
