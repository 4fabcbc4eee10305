"""What a target's tokens cost: by the policy, else by the catalogue of common models that ships as ``prices.yaml``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import date
from functools import lru_cache
from importlib import resources
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

import yaml
from pydantic import Field, TypeAdapter

from gateway.apis import Api
from gateway.policy.schema import (
    Backend,
    BedrockBackend,
    EngineBackend,
    FakeBackend,
    GeminiBackend,
    Policy,
    Price,
    SidecarBackend,
    Target,
)
from gateway.policy.schema.values import Frozen, HttpUrl


class Group(Frozen):
    """Prices from one source."""

    hosts: tuple[str, ...]
    """Of the base URLs that they apply to."""
    source: HttpUrl
    read: date
    verified: Literal["page", "copies"]
    models: Annotated[dict[str, Price], Field(min_length=1)]


class CatalogPrice(NamedTuple):
    """A price from the catalogue, and where and when it was read."""

    price: Price
    source: str
    read: date


_NOTHING = Price(input=0.0, output=0.0, only_tokens=True)

UNIT_PRICES: Mapping[Api | None, str] = {
    "speech": "million_characters",
    "transcription": "minute",
    "translation": "minute",
    "image_generation": "image",
    "image_edit": "image",
    "rerank": "thousand_searches",
}
"""The APIs whose answers are counted in units of their own, and the names of the prices for those."""
_FREE = ("tokenize", "detokenize", "count_tokens")
"""No model is run."""


@lru_cache(maxsize=1)
def catalogue() -> Mapping[tuple[str, str], CatalogPrice]:
    """By host and model."""
    text = (resources.files("gateway.policy") / "prices.yaml").read_text("utf-8")
    groups = TypeAdapter(tuple[Group, ...]).validate_python(yaml.safe_load(text))
    return {
        (host, model): CatalogPrice(price, group.source, group.read)
        for group in groups
        for host in group.hosts
        for model, price in group.models.items()
    }


def completed(policy: Policy, disabled: Collection[str] = ()) -> tuple[Policy, Mapping[str, CatalogPrice]]:
    """The policy with prices from the catalogue for targets that have none of their own; and which those are.

    The ``disabled`` backends get no requests, so that a target without a price there costs nothing.
    """
    found: dict[str, CatalogPrice] = {}
    unused: dict[str, Price] = {}
    for target in targets(policy):
        backend = policy.backends.get(target.backend)
        if backend is None or _own_price(policy, target) is not None:
            continue
        if (listed := catalogue().get((_host(backend), target.model))) is not None:
            found[f"{target.backend}/{target.model}"] = listed
        elif target.backend in disabled:
            unused[f"{target.backend}/{target.model}"] = _NOTHING
    if not found and not unused:
        return policy, {}
    prices = {**policy.prices, **unused, **{name: listed.price for name, listed in found.items()}}
    return policy.model_copy(update={"prices": prices}), found


def price_of(policy: Policy, target: Target) -> Price | None:
    """The entry for ``backend/model``, else ``model``, else ``backend/*``, else ``default_price``.

    None where there is none of them, and for backends on one's own machines that have no entry.
    """
    price = _own_price(policy, target) if policy.prices else None
    if price is None and policy.default_price is not None and is_bought(policy, target):
        return policy.default_price
    return price


def is_bought(policy: Policy, target: Target) -> bool:
    """Whether a provider charges for it: the bundled engine, the sidecar and scripted answers cost nothing."""
    return not isinstance(policy.backends.get(target.backend), EngineBackend | SidecarBackend | FakeBackend)


def is_unpriced(policy: Policy, target: Target) -> bool:
    """Whether it costs money and has no price."""
    return price_of(policy, target) is None and is_bought(policy, target)


def is_unpriced_for(policy: Policy, target: Target, api: Api | None) -> bool:
    """The same, or has one for something else than the answers of ``api``; without one, than tokens."""
    price = price_of(policy, target)
    return is_bought(policy, target) and (price is None or not _has_price(price, api))


def _has_price(price: Price, api: Api | None) -> bool:
    """A price for tokens is none for what is not counted in them, unless it says that its provider does."""
    if (unit := UNIT_PRICES.get(api)) is not None:
        return price.only_tokens or getattr(price, unit) is not None
    return price.by_tokens or api in _FREE


def targets(policy: Policy) -> Iterator[Target]:
    return (target for model in policy.models.values() for target in model.places)


def _own_price(policy: Policy, target: Target) -> Price | None:
    prices = policy.prices
    return (
        prices.get(f"{target.backend}/{target.model}")
        or prices.get(target.model)
        or prices.get(f"{target.backend}/*")
    )


def _host(backend: Backend) -> str:
    url = (
        backend.url
        if isinstance(backend, GeminiBackend | BedrockBackend)
        else getattr(backend, "base_url", "")
    )
    return urlsplit(url).hostname or ""
