"""Dollars: of machines and of tokens, and where the two meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.workload import Volume
from gateway.policy.prices import catalogue
from gateway.policy.schema import Price


def usd_per_million(usd_per_hour: float, tokens_per_second: float) -> float:
    """Of a million tokens: $2 an hour at 1,000 tokens a second are $0.56."""
    return usd_per_hour / (tokens_per_second * 3600) * 1e6


@dataclass(frozen=True, slots=True)
class BreakEven:
    """A provider's price for the same tokens."""

    model: str
    input: float
    """Dollars a million."""
    output: float
    source: str
    read: str
    usd_per_month: float
    """At the volume that is planned for."""
    share: float
    """Of that volume, from which on machines of one's own are cheaper."""


def break_evens(names: Sequence[str], volume: Volume, usd_per_month: float) -> list[BreakEven]:
    """``usd_per_month``: of one's own machines. Raises ``PlanError`` for a model that the catalogue has no price of."""
    listed: Mapping[str, tuple[Price, str, str]] = {
        model: (found.price, found.source, str(found.read)) for (_, model), found in catalogue().items()
    }
    rows = []
    for name in names:
        if name not in listed:
            near = [model for model in listed if name.lower() in model.lower()][:5]
            told = (
                f"; there are {', '.join(near)}"
                if near
                else "; tollgate's catalogue is gateway/policy/prices.yaml"
            )
            raise PlanError(f"--against {name}: the catalogue has no price of that model{told}")
        price, source, read = listed[name]
        if not price.by_tokens:
            raise PlanError(f"--against {name}: its price is not by tokens of chat")
        cached = price.input if price.cached_input is None else price.cached_input
        dollars = (
            (volume.prompt - volume.cached) * price.input
            + volume.cached * cached
            + volume.output * price.output
        )
        dollars /= 1e6
        rows.append(
            BreakEven(
                name,
                price.input,
                price.output,
                source,
                read,
                dollars,
                usd_per_month / dollars if dollars > 0 else float("inf"),
            )
        )
    return rows
