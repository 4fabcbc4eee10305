from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.price import Rates, at_most, cost, dearest, price_of, priced, writes_cache
from gateway.policy.schema import Price, Target
from gateway.types import Usage
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


def test_sound_has_a_price_of_its_own() -> None:
    def usage(sound: object, **more: int) -> Usage:
        return Usage(100, 10, more={"prompt_tokens_details": {"audio_tokens": sound}}, **more)

    price = Price(input=1.0, output=2.0, cached_input=0.5, audio_input=40.0)
    assert priced(price, usage(60)) == 40 * 1000 + 60 * 40_000 + 10 * 2000
    assert priced(price, usage(60, cached=70)) == 70 * 500 + 30 * 40_000 + 10 * 2000
    assert priced(price, usage(10**9)) == 100 * 40_000 + 10 * 2000
    for odd in (0, -5, True, "60", None):
        assert priced(price, usage(odd)) == 100 * 1000 + 10 * 2000
    assert priced(Price(input=1.0, output=2.0), usage(60)) == 100 * 1000 + 10 * 2000
    rates = at_most(price)
    assert rates.cost(100, 0) == 100 * 1000
    assert rates.with_sound().cost(100, 0) == 100 * 40_000


def test_who_marks_what_is_to_be_kept_may_pay_for_keeping_all_of_it() -> None:
    marked = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    quoted = 'as in "cache_control":{"type":"ephemeral"}'
    for content, writes in (("Hi", False), (quoted, False), ([marked], True)):
        assert writes_cache(a_call(messages=({"role": "user", "content": content},)).request) == writes
    rates = at_most(Price(input=1.0, output=1.0))
    assert (rates.cost(1, 0), rates.cost(1, 0, written=True)) == (1000, 2000)


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


def test_at_most() -> None:
    dear = Price(input=1.0, cached_input=2.0, output=1.0, reasoning=3.0, cache_write=1.5)
    assert at_most(dear) == Rates(2_000_000, 3_000_000, 2_000_000)
    assert at_most(Price(input=1.0, output=2.0)) == Rates(1_000_000, 2_000_000, 2_000_000)
    assert at_most(None) == dearest([]) == Rates(0, 0)
    assert dearest([Rates(1, 5), Rates(3, 2)]) == Rates(3, 5)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**9), st.integers(0, 10**4))
def test_answers_for_is_the_most_that_the_money_pays_for(
    prompt_rate: int, answer_rate: int, nanodollars: int, prompt: int
) -> None:
    rates = Rates(prompt_rate, answer_rate)
    most = rates.answers_for(nanodollars, prompt)
    if most < 0:
        assert rates.cost(prompt, 0) > nanodollars
    elif not answer_rate:
        assert rates.cost(prompt, 10**12) <= nanodollars
    else:
        assert rates.cost(prompt, int(most)) <= nanodollars < rates.cost(prompt, int(most) + 1) or (
            rates.cost(prompt, int(most) + 1) == nanodollars
        )
