"""What a call can meet where it may be sent first, and at one place."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.metering.estimate import Estimator
from gateway.metering.media_tokens import MediaBounds
from gateway.metering.price import Rates
from gateway.metering.unit_price import UnitRates
from gateway.policy.schema import Target
from gateway.quota.limits import LimitsCache
from gateway.quota.quota_request import quota_request
from gateway.quota.target_bounds import TargetBounds, TargetBoundsCache
from gateway.types import Principal
from tests.fakes import a_call, policy

PRICES = {f"p{n}": {"input": float(n), "output": float(n)} for n in (1, 2, 3, 5, 8)}


def model(*names: str, **more: Any) -> dict[str, Any]:
    return {"targets": [{"backend": "up", "model": name} for name in names], **more}


@pytest.mark.parametrize(
    ("models", "dearest"),
    [
        ({"m": model("p1")}, 1),
        ({"m": model("p1", "p3", "free")}, 3),
        ({"m": model("free")}, 0),
        ({"m": model("p1", fallbacks=["f"]), "f": model("p5")}, 1),
        ({"m": model("p1", larger_context="f"), "f": model("p5", "p8")}, 1),
        ({"m": {"cascade": [{"model": "a"}, {"model": "b"}]}, "a": model("p1"), "b": model("p5", "p3")}, 5),
        ({"m": {"cascade": [{"model": "m"}, {"model": "a"}]}, "a": model("p2")}, 2),
    ],
    ids=["one", "dearest", "no price", "fallback", "larger", "cascade", "circle"],
)
def test_the_dearest_place_that_may_be_asked_first(models: dict[str, Any], dearest: int) -> None:
    """What stands in for it is paid for when it does."""
    call = a_call(policy_=policy(models=models, prices=PRICES, default_price={"input": 0.0, "output": 0.0}))
    rates = TargetBoundsCache().first(call).rates
    assert (rates.prompt, rates.answer) == (dearest * 10**6, dearest * 10**6)


def test_a_tier_that_may_be_downgraded() -> None:
    tiers = {"free": {"on_saturation": {"action": "downgrade", "to": "d"}}}
    made = policy(models={"m": model("p1"), "d": model("p2")}, prices=PRICES, tiers=tiers)
    book = TargetBoundsCache()
    assert (
        book.first(a_call(policy_=made, principal=Principal("k", "t", tier="free"))).rates.prompt == 2 * 10**6
    )
    assert book.first(a_call(policy_=made)).rates.prompt == 10**6


def test_how_long_answers_get() -> None:
    made = policy(
        models={
            "m": model("p1", max_output=500, context=400),
            "n": model("p1", max_output=300),
            "c": {"cascade": [{"model": "m"}, {"model": "n"}]},
            "d": {"cascade": [{"model": "m"}, {"model": "e"}]},
            "e": model("p1"),
        },
        prices=PRICES,
    )
    book = TargetBoundsCache()

    def first(name: str) -> tuple[int | None, int | None]:
        found = book.first(a_call(policy_=made, model=name))
        return found.max_output, found.max_answer

    assert first("m") == (500, 400)
    assert first("c") == (500, 400)
    assert first("d") == (None, None)
    place = book.target(made, "n", Target(backend="up", model="p1"))
    assert place == TargetBounds(
        *(Rates(10**6, 10**6, 2 * 10**6), "openai", 300, 300, None),
        media=MediaBounds.of("openai", "p1"),
        units=(UnitRates(),),
    )


def test_what_a_backend_sends_unasked() -> None:
    made = policy(
        backends={"claude": {"kind": "anthropic", "api_key": "k", "max_tokens": 77}},
        models={"m": {"targets": [{"backend": "claude", "model": "c"}]}},
        default_price={"input": 0.0, "output": 0.0},
    )
    assert TargetBoundsCache().first(a_call(policy_=made)).default_cap == 77


def test_one_book_reads_each_policy_anew() -> None:
    """A reloaded policy has other prices, and calls of both are under way."""
    unpriced = policy(models={"m": model("other")})
    cheap, dear = (policy(models={"m": model(name)}, prices=PRICES) for name in ("p1", "p8"))
    book = TargetBoundsCache()
    for _ in range(2):
        for made, price in ((cheap, 1), (dear, 8)):
            call = a_call(policy_=made)
            assert book.first(call).rates.prompt == price * 10**6
            assert book.target(made, "m", made.models["m"].targets[0]).rates.prompt == price * 10**6
            assert book.unpriced(call) is None
        assert book.unpriced(a_call(policy_=unpriced)) == "up/other"


def test_a_prompt_with_sound_is_held_at_the_price_of_sound() -> None:
    price = {"input": 1.0, "output": 1.0, "audio_input": 40.0}
    rules = policy(prices={"upstream-model": price}, tenants={"acme": {"budget": {"usd_per_day": 100.0}}})
    text = {"type": "text", "text": "x" * 100}
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    cache = TargetBoundsCache()

    def held(*parts: dict[str, Any]) -> int:
        messages = ({"role": "user", "content": [text, *parts]},)
        call = a_call(policy_=rules, messages=messages, params={"max_tokens": 1})
        limits = LimitsCache().limits(rules, call.principal)
        asked = quota_request(call, Estimator().estimate(call), cache.first(call), limits)
        return asked.at(1).nanodollars

    assert held() < 1000 * 1000
    assert held(sound) > 20 * held()
