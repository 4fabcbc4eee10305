"""What one request costs: a charge for each attempt that used tokens, and their sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.metering.price import discounted, price_of, priced
from gateway.metering.unit_price import UnitRates
from gateway.policy.schema import Policy, Price
from gateway.types import UpstreamUsage, Usage

NOTHING = Usage(0, 0)


class Charge(NamedTuple):
    """The tokens of one attempt, and their price."""

    upstream: UpstreamUsage
    nanodollars: int


class Bill(NamedTuple):
    """All that one request used up, paid for by its caller."""

    charges: tuple[Charge, ...] = ()
    tokens: int = 0
    nanodollars: int = 0
    estimated: bool = False
    unpriced: tuple[str, ...] = ()
    """Models that took part and have no entry in the price table."""

    @property
    def answer(self) -> Charge | None:
        """What the caller's answer itself took."""
        for one in self.charges:
            if one.upstream.purpose == "answer":
                return one
        return None

    @property
    def others(self) -> tuple[Charge, ...]:
        """Everything but ``answer``."""
        answer = self.answer
        if answer is not None and len(self.charges) == 1:
            return ()
        return tuple(one for one in self.charges if one is not answer)


def bill_of(policy: Policy, attempts: Sequence[UpstreamUsage], factor: float = 1.0) -> Bill:
    """``factor``: of the price table's prices."""
    if not attempts:
        return _FREE
    charges: list[Charge] = []
    tokens = nanodollars = 0
    estimated = False
    unpriced: list[str] = []
    for one in attempts:
        target, usage, cost = one.target, one.usage, 0
        price = price_of(policy, target)
        if price is not None:
            cost = discounted(priced(price, usage), factor)
        if price is None or not _counts(price, usage):
            unpriced.append(f"{target.backend}/{target.model}")
        charges.append(Charge(one, cost))
        tokens += usage.prompt + usage.completion
        nanodollars += cost
        estimated = estimated or one.estimated
    return Bill(tuple(charges), tokens, nanodollars, estimated, tuple(dict.fromkeys(unpriced)))


def _counts(price: Price, usage: Usage) -> bool:
    """Whether it has a price for what was used: sound has none in a table of tokens alone."""
    if price.by_tokens or not (usage.prompt or usage.completion or usage.units):
        return True
    return usage.units is not None and UnitRates.of(price).has(usage.units.unit)


_FREE = Bill()
