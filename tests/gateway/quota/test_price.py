from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.schema import Price, Target
from gateway.quota.price import PriceBook, cost, price_of, priced
from gateway.types import Demand, Principal, Usage
from tests.fakes import TARGET, a_call, policy


@pytest.mark.parametrize(
    ("usage", "nanodollars"),
    [
        (Usage(1000, 0), 150_000),
        (Usage(1, 0), 150),
        (Usage(0, 1), 600),
        (Usage(1000, 0, cached=1000), 75_000),
        (Usage(1000, 100, cached=400, reasoning=40), 600 * 150 + 400 * 75 + 60 * 600 + 40 * 900),
        (Usage(10, 0, cached=99), 750),
        (Usage(0, 0), 0),
    ],
)
def test_each_kind_of_token_has_its_price(usage: Usage, nanodollars: int) -> None:
    assert priced(Price(input=0.15, cached_input=0.075, output=0.6, reasoning=0.9), usage) == nanodollars


def test_without_prices_of_their_own() -> None:
    assert priced(Price(input=1.0, output=2.0), Usage(2, 2, cached=1, reasoning=1)) == 6000


@pytest.mark.parametrize(
    ("price", "nanodollars"),
    [
        (Price(input=1.0, output=2.0), 500_000 + 200_000 + 100 * 1250 + 200 * 2000),
        (
            Price(input=1.0, output=2.0, cached_input=0.1, cache_write=1.5, cache_write_1h=3.0),
            500_000 + 20_000 + 100 * 1500 + 200 * 3000,
        ),
    ],
)
def test_what_is_put_into_a_prompt_cache_has_a_price_of_its_own(price: Price, nanodollars: int) -> None:
    usage = Usage(1000, 0, cached=200, cache_write=300, cache_write_1h=200)
    assert priced(price, usage) == nanodollars


def test_who_marks_what_is_to_be_kept_may_pay_for_keeping_all_of_it() -> None:
    prices = {"upstream-model": {"input": 1.0, "output": 1.0}}
    marked = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    quoted = 'as in "cache_control":{"type":"ephemeral"}'
    for content, nanodollars in (("Hi", 1000), (quoted, 1000), ([marked], 2000)):
        call = a_call(policy_=policy(prices=prices), messages=({"role": "user", "content": content},))
        assert PriceBook().worst_case(call, Demand(1, 0, 0)) == nanodollars


def test_rounded_up() -> None:
    assert priced(Price(input=0.0001, output=0.0), Usage(1, 0)) == 1


micros = st.integers(0, 10**9).map(lambda n: n / 10**6)


@given(micros, micros, st.integers(0, 10**6), st.integers(0, 10**6))
def test_exact_whatever_the_float(input: float, output: float, prompt: int, completion: int) -> None:
    exact = (Fraction(str(input)) * prompt + Fraction(str(output)) * completion) * 1000
    assert priced(Price(input=input, output=output), Usage(prompt, completion)) == ceil(exact)


def test_a_backends_own_price_goes_first() -> None:
    prices = {"upstream-model": {"input": 1, "output": 1}, "up/upstream-model": {"input": 2, "output": 2}}
    priced = policy(prices={name: {k: float(v) for k, v in p.items()} for name, p in prices.items()})
    assert cost(priced, TARGET, Usage(1, 0)) == 2000
    assert cost(priced, Target(backend="other", model="upstream-model"), Usage(1, 0)) == 1000
    assert cost(priced, Target(backend="up", model="x"), Usage(1, 0)) == 0
    assert price_of(priced, Target(backend="up", model="x")) is None


def model(*names: str, **more: Any) -> dict[str, Any]:
    return {"targets": [{"backend": "up", "model": name} for name in names], **more}


PRICES = {f"p{n}": {"input": float(n), "output": float(n)} for n in (1, 2, 3, 5, 8)}


@pytest.mark.parametrize(
    ("models", "dearest"),
    [
        ({"m": model("p1")}, 1),
        ({"m": model("p1", "p3", "free")}, 3),
        ({"m": model("free")}, 0),
        ({"m": model("p1", fallbacks=["f"]), "f": model("p5")}, 5),
        ({"m": model("p1", larger_context="f"), "f": model("p5", "p8")}, 8),
        ({"m": model("p8", fallbacks=["f"]), "f": model("p5")}, 8),
        ({"m": {"cascade": [{"model": "a"}, {"model": "b"}]}, "a": model("p1"), "b": model("p5", "p3")}, 6),
        (
            {
                "m": {"cascade": [{"model": "a"}, {"model": "b"}]},
                "a": model("p1", fallbacks=["c"]),
                "b": model("p2"),
                "c": model("p3"),
            },
            5,
        ),
        ({"m": {"cascade": [{"model": "m"}, {"model": "a"}]}, "a": model("p2")}, 2),
        ({"m": model("p1", fallbacks=["m", "gone"])}, 1),
    ],
)
def test_worst_case(models: dict[str, Any], dearest: int) -> None:
    call = a_call(policy_=policy(models=models, prices=PRICES))
    assert PriceBook().worst_case(call, Demand(7, 1, 3)) == dearest * 10 * 1000


def test_worst_case_with_a_dear_discount() -> None:
    prices = {"upstream-model": {"input": 1.0, "cached_input": 2.0, "output": 1.0, "reasoning": 3.0}}
    assert PriceBook().worst_case(a_call(policy_=policy(prices=prices)), Demand(1, 1, 1)) == 5000


def test_worst_case_of_a_tier_that_is_downgraded() -> None:
    tiers = {"free": {"on_saturation": {"action": "downgrade", "to": "d"}}}
    made = policy(models={"m": model("p1"), "d": model("p2")}, prices=PRICES, tiers=tiers)
    assert (
        PriceBook().worst_case(
            a_call(policy_=made, principal=Principal("k", "t", tier="free")), Demand(1, 1, 0)
        )
        == 2000
    )
    assert PriceBook().worst_case(a_call(policy_=made), Demand(1, 1, 0)) == 1000
