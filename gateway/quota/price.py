"""What tokens cost, by the policy's price table, in whole nano-dollars (10^-9 US$), rounded up."""

from __future__ import annotations

from gateway.policy.schema import Policy, Price, Target
from gateway.types import Call, Demand, Usage

NANO = 10**9
_PICO_PER_NANO = 1000


def price_of(policy: Policy, target: Target) -> Price | None:
    """The entry for ``backend/model``, else for ``model``; None where the table has neither."""
    return policy.prices.get(f"{target.backend}/{target.model}") or policy.prices.get(target.model)


def cost(policy: Policy, target: Target, usage: Usage) -> int:
    """Nano-dollars for ``usage`` at ``target``; 0 where its price is not known, which ``price_of`` tells."""
    price = price_of(policy, target)
    return 0 if price is None else priced(price, usage)


def priced(price: Price, usage: Usage) -> int:
    cached = min(usage.cached, usage.prompt)
    reasoning = min(usage.reasoning, usage.completion)
    pico = (
        (usage.prompt - cached) * _rate(price.input)
        + cached * _rate(_cached(price))
        + (usage.completion - reasoning) * _rate(price.output)
        + reasoning * _rate(_reasoning(price))
    )
    return _up(pico)


def worst_case(call: Call, demand: Demand) -> int:
    """The most that ``call`` may cost: at the dearest target in reach, and, in a cascade, at every step."""
    policy = call.policy
    on_saturation = policy.tier(call.principal.tier).on_saturation
    downgraded = on_saturation.to if on_saturation is not None else None
    return max(_dearest(policy, name, demand, frozenset()) for name in (call.model, downgraded))


def _dearest(policy: Policy, name: str | None, demand: Demand, above: frozenset[str]) -> int:
    """Of the model's own targets or steps, its fallbacks' and its larger context's."""
    model = policy.models.get(name) if name else None
    if model is None:
        return 0
    return max(_own(policy, other, demand, above) for other in (name, *model.fallbacks, model.larger_context))


def _own(policy: Policy, name: str | None, demand: Demand, above: frozenset[str]) -> int:
    model = policy.models.get(name) if name else None
    if name is None or model is None or name in above:
        return 0
    if model.cascade:
        return sum(_dearest(policy, step.model, demand, above | {name}) for step in model.cascade)
    prices = (price_of(policy, target) for target in model.targets)
    return max((_most(price, demand) for price in prices if price is not None), default=0)


def _most(price: Price, demand: Demand) -> int:
    pico = demand.prompt * _rate(max(price.input, _cached(price)))
    pico += demand.reserved * _rate(max(price.output, _reasoning(price)))
    return _up(pico)


def _cached(price: Price) -> float:
    return price.input if price.cached_input is None else price.cached_input


def _reasoning(price: Price) -> float:
    return price.output if price.reasoning is None else price.reasoning


def _rate(dollars_per_million: float) -> int:
    # Whole pico-dollars a token: sums are exact, whatever float a price is.
    return round(dollars_per_million * 1e6)


def _up(pico: int) -> int:
    return -(-pico // _PICO_PER_NANO)
