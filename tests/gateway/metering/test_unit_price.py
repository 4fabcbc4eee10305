"""What sound, spoken text, pictures and searches cost."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.apis import Units
from gateway.metering.bill import bill_of
from gateway.metering.unit_price import UnitRates
from gateway.policy.schema import Price, Target
from gateway.types import UpstreamUsage, Usage
from tests.fakes import policy

TABLE = {"high 1024x1024": 0.17, "high": 0.25, "medium": 0.06, "512x512": 0.01, "*": 0.04}


def cost(price: Price, units: Units) -> float:
    return UnitRates.of(price).cost(units) / 1e9


@pytest.mark.parametrize(
    ("price", "units", "dollars"),
    [
        ({"minute": 0.006}, Units("second", 90), 0.009),
        ({"minute": 0.006}, Units("second", 0.001), 0.0000001),
        ({"million_characters": 15.0}, Units("character", 1), 0.000015),
        ({"thousand_searches": 2.0}, Units("search", 3), 0.006),
        ({"image": 0.04}, Units("image", 3, "high 1024x1024"), 0.12),
        ({"minute": 0.006}, Units("character", 100), 0.0),
    ],
)
def test_each_has_a_price_of_its_own(price: dict[str, float], units: Units, dollars: float) -> None:
    assert cost(Price.model_validate(price), units) == pytest.approx(dollars)


@pytest.mark.parametrize(
    ("kind", "dollars"),
    [
        ("high 1024x1024", 0.17),
        ("high 1536x1024", 0.25),
        ("medium 1024x1024", 0.06),
        ("low 512x512", 0.01),
        ("low 1024x1024", 0.04),
        # What the model chooses may be the dearest that there is.
        (" ", 0.25),
        ("auto auto", 0.25),
        (" 1024x1024", 0.25),
        ("medium ", 0.06),
        ("low auto", 0.04),
        (" 512x512", 0.25),
    ],
)
def test_pictures_by_quality_and_size(kind: str, dollars: float) -> None:
    assert cost(Price.model_validate({"image": TABLE}), Units("image", 1, kind)) == pytest.approx(dollars)


def test_a_picture_that_no_entry_fits_has_the_dearest() -> None:
    price = Price.model_validate({"image": {"high": 0.25, "low": 0.01}})
    assert cost(price, Units("image", 1, "hd 1x1")) == pytest.approx(0.25)


@pytest.mark.parametrize(
    "price",
    [
        {},
        {"input": 1.0},
        {"output": 1.0},
        {"minute": 1.0, "input": 1.0},
        {"cached_input": 1.0, "minute": 1.0},
    ],
)
def test_half_a_price_is_none(price: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="is missing"):
        Price.model_validate(price)


@pytest.mark.parametrize(
    ("price", "usage", "unpriced"),
    [
        ({"minute": 0.6}, Usage(0, 0, units=Units("second", 60)), False),
        ({"thousand_searches": 2.0}, Usage(0, 0, units=Units("second", 60)), True),
        ({"minute": 0.6}, Usage(10, 5), True),
        ({"input": 1.0, "output": 1.0}, Usage(10, 5, units=Units("second", 60)), False),
        ({"minute": 0.6}, Usage(0, 0), False),
    ],
)
def test_a_bill_says_what_has_no_price(price: dict[str, float], usage: Usage, unpriced: bool) -> None:
    made = policy(prices={"upstream-model": price})
    bill = bill_of(made, [UpstreamUsage(Target(backend="up", model="upstream-model"), usage)])
    assert bool(bill.unpriced) == unpriced


def test_units_and_tokens_are_billed_together() -> None:
    made = policy(prices={"upstream-model": {"minute": 0.6, "input": 1.0, "output": 2.0}})
    usage = Usage(1000, 500, units=Units("second", 60))
    bill = bill_of(made, [UpstreamUsage(Target(backend="up", model="upstream-model"), usage)])
    assert bill.nanodollars == 600_000_000 + 1_000_000 + 1_000_000
