"""The facade: what is asked of a caller's limits, and what the caller is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.errors import BadRequest, BudgetSpent, Forbidden, Overloaded, RateLimited, TooManyAnswers
from gateway.policy.schema import Budget, QuotaSettings
from gateway.quota.quotas import Quotas, Reservation, duration
from gateway.types import Call, Principal, Usage
from tests.conftest import RedisServer
from tests.fakes import a_call, policy

pytestmark = pytest.mark.anyio

PRICES = {"upstream-model": {"input": 1.0, "output": 1.0}}
NOON = 1_900_000_800.0 - 1_900_000_800.0 % 86_400 + 43_200


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def quotas(clock: Clock) -> AsyncIterator[Quotas]:
    quotas = Quotas("memory", clock=clock)
    yield quotas
    await quotas.aclose()


def call(
    request_id: str = "a",
    *,
    allowed: dict[str, int] | None = None,
    budget: dict[str, float] | None = None,
    more: dict[str, Any] | None = None,
    **request: Any,
) -> Call:
    caller = Principal("k", "acme", quotas=QuotaSettings(**(allowed or {})), budget=Budget(**(budget or {})))
    made = a_call(policy_=policy(prices=PRICES, **(more or {})), principal=caller, **request)
    made.request_id = request_id
    return made


async def reserve(quotas: Quotas, made: Call) -> Reservation:
    reservation = await quotas.reserve(made)
    assert reservation is not None
    return reservation


async def test_without_a_limit_there_is_a_demand_only(quotas: Quotas) -> None:
    made = call()
    assert await quotas.reserve(made) is None
    assert made.estimate is None
    assert made.estimated() is not None
    assert made.reply_headers == {}


async def test_headers(quotas: Quotas) -> None:
    made = call(allowed={"requests_per_minute": 60, "tokens_per_minute": 1000}, params={"max_tokens": 90})
    await quotas.reserve(made)
    assert made.estimate is not None
    assert made.reply_headers == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1m1s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": str(1000 - 45 - made.estimate.prompt),
        "x-ratelimit-reset-tokens": "1m1s",
    }


async def test_headers_tell_of_the_tightest(quotas: Quotas) -> None:
    tenants = {"acme": {"quotas": {"requests_per_minute": 5, "tokens_per_minute": 10**6}}}
    for i, remaining in enumerate(["4", "3", "2"]):
        made = call(
            str(i), allowed={"requests_per_minute": 60, "tokens_per_day": 10**6}, more={"tenants": tenants}
        )
        await quotas.reserve(made)
        assert made.reply_headers["x-ratelimit-limit-requests"] == "5"
        assert made.reply_headers["x-ratelimit-remaining-requests"] == remaining
        assert made.reply_headers["x-ratelimit-limit-tokens"] == "1000000"


async def test_refused_by_requests(quotas: Quotas, clock: Clock) -> None:
    allowed = {"requests_per_minute": 1, "tokens_per_minute": 1000}
    await quotas.reserve(call("a", allowed=allowed))
    clock.now += 20.5
    made = call("b", allowed=allowed)
    with pytest.raises(RateLimited) as refused:
        await quotas.reserve(made)
    error = refused.value
    assert type(error) is RateLimited
    assert error.retry_after == 40.5
    assert error.message == (
        "Rate limit reached for key 'k': 1 requests per minute. 1 used, this request needs 1. Try again in 40.5s."
    )
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert error.headers["x-ratelimit-reset-requests"] == "40.5s"
    assert made.receipt.notes["quota"] == {"refused": "key 'k': 1 requests per minute", "retry_after": 40.5}


@pytest.mark.parametrize("kind", ["requests_per_minute", "tokens_per_minute"])
async def test_no_wait_for_a_minutes_window_is_as_long_as_a_minute(quotas: Quotas, kind: str) -> None:
    """OpenAI's SDKs take a longer one for none."""
    allowed = {kind: 100 if kind.startswith("tokens") else 1}
    first = await reserve(quotas, call("a", allowed=allowed, params={"max_tokens": 80}))
    quotas.settle(first, tokens=92, nanodollars=0)
    with pytest.raises(RateLimited) as refused:
        await quotas.reserve(call("b", allowed=allowed, params={"max_tokens": 80}))
    assert refused.value.retry_after == 59
    assert refused.value.message.endswith("Try again in 59s.")


async def test_the_budget_is_spent_until_the_day_ends(quotas: Quotas) -> None:
    budget = {"usd_per_day": 0.001}
    first = await reserve(quotas, call("a", budget=budget, params={"max_tokens": 900}))
    with pytest.raises(RateLimited, match="in flight") as held:
        await quotas.reserve(call("b", budget=budget, params={"max_tokens": 900}))
    assert not isinstance(held.value, BudgetSpent)
    assert held.value.retry_after is not None
    assert held.value.retry_after < 5
    quotas.settle(first, tokens=900, nanodollars=900_000)
    long = ({"role": "user", "content": "x" * 50},)
    with pytest.raises(BudgetSpent) as spent:
        await quotas.reserve(call("b", budget=budget, messages=long, params={"max_tokens": 900}))
    assert spent.value.retry_after == 43_200
    assert spent.value.headers == {"x-should-retry": "false"}
    assert "key 'k': $0.001 per day. $0.0009 used" in spent.value.message
    await quotas.reserve(call("c", budget=budget, params={"max_tokens": 50}))


async def test_a_first_call_is_not_refused_for_its_estimate_alone(quotas: Quotas) -> None:
    made = call(allowed={"tokens_per_minute": 50, "tokens_per_day": 40}, budget={"usd_per_day": 0.0001})
    await quotas.reserve(made)
    assert made.estimate is not None
    assert made.estimate.prompt + made.estimate.reserved <= 40
    assert made.estimate.expected <= made.estimate.reserved


@pytest.mark.parametrize("params", [{}, {"max_tokens": 30}])
async def test_no_call_is_refused_for_what_earlier_prompts_came_to(
    quotas: Quotas, params: dict[str, int]
) -> None:
    told = call()
    await quotas.reserve(told)
    quotas.estimator.learn(told, Usage(5000, 5))
    made = call(allowed={"tokens_per_minute": 100}, params=params)
    await quotas.reserve(made)
    assert made.estimate is not None
    assert made.estimate.prompt + made.estimate.reserved == 100
    assert made.allowance is not None
    assert await made.allowance.hold(made) == 16


async def test_what_can_never_fit_is_said_so(quotas: Quotas) -> None:
    long = ({"role": "user", "content": "x" * 500},)
    with pytest.raises(BadRequest, match=r"never be admitted.*key 'k': 100 tokens per minute") as refused:
        await quotas.reserve(call(allowed={"tokens_per_minute": 100}, messages=long))
    assert refused.value.param == "messages"
    assert refused.value.code == "tokens_exceed_limit"


async def test_a_cap_above_the_quota_is_lowered_to_it(quotas: Quotas) -> None:
    made = call(allowed={"tokens_per_minute": 100}, params={"max_tokens": 5000})
    await quotas.reserve(made)
    assert made.allowance is not None
    assert made.estimate is not None
    assert await made.allowance.hold(made) == 100 - made.estimate.prompt


async def test_dollars_that_can_never_fit(quotas: Quotas) -> None:
    long = ({"role": "user", "content": "x" * 5000},)
    with pytest.raises(BudgetSpent, match=r"never be admitted: it may cost \$0\.00.*\$0\.001 per month"):
        await quotas.reserve(call(budget={"usd_per_month": 0.001}, messages=long))
    with pytest.raises(BudgetSpent, match="never be admitted"):
        await quotas.reserve(call(budget={"usd_per_month": 0.0}))


async def test_what_costs_nothing_passes_a_spent_budget(quotas: Quotas) -> None:
    free = policy(prices={"upstream-model": {"input": 0.0, "output": 0.0}})
    made = a_call(policy_=free, principal=Principal("k", "acme", budget=Budget(usd_per_day=0.0)))
    assert await quotas.reserve(made) is not None


@pytest.mark.parametrize("named", ["m", "fallback", "step", "larger"])
async def test_what_has_no_price_is_refused_under_a_budget(quotas: Quotas, named: str) -> None:
    """Wherever within its bounds that is: a budget cannot hold what nobody can count."""
    priced, unpriced = {"backend": "up", "model": "upstream-model"}, {"backend": "up", "model": "new"}
    models: dict[str, Any] = {
        "m": {"targets": [priced, unpriced]},
        "other": {"targets": [unpriced]},
        "fallback": {"targets": [priced], "fallbacks": ["other"]},
        "larger": {"targets": [priced], "context": 10, "larger_context": "other"},
        "step": {"cascade": [{"model": "other"}, {"model": "good"}]},
        "good": {"targets": [priced]},
    }
    more: dict[str, Any] = {"models": models}
    asked = {"budget": {"usd_per_day": 1.0}, "model": named}
    with pytest.raises(Forbidden, match="up/new, which has no price, and the budget") as refused:
        await quotas.reserve(call("a", more=more, **asked))
    assert refused.value.code == "model_has_no_price"
    await quotas.reserve(call("b", more=more, **{**asked, "model": "good"}))
    await quotas.reserve(call("c", more=more, model=named))  # who has no budget may
    await quotas.reserve(call("d", more={**more, "on_unpriced": "free"}, **asked))
    dear = {**more, "default_price": {"input": 1.0, "output": 10**6}}
    if named in ("m", "step"):  # what stands in for the first is paid for when it is asked
        with pytest.raises(BudgetSpent, match="may cost"):
            await quotas.reserve(call("e", more=dear, params={"max_tokens": 100}, **asked))


async def test_concurrent_requests_wait_for_a_place(quotas: Quotas) -> None:
    allowed = {"concurrent_requests": 2}
    first = await reserve(quotas, call("a", allowed=allowed))
    await quotas.reserve(call("b", allowed=allowed))
    with pytest.raises(RateLimited, match="2 answers at once") as refused:
        await quotas.reserve(call("c", allowed=allowed))
    assert refused.value.retry_after is not None
    assert 0.1 <= refused.value.retry_after <= 1
    quotas.settle(first, tokens=1, nanodollars=0)
    await quotas.reserve(call("c", allowed=allowed))


async def test_places_are_answers(quotas: Quotas) -> None:
    """Whatever makes several of one request; embeddings of many texts are one piece of work."""
    allowed = {"concurrent_requests": 4}
    first = await reserve(quotas, call("a", allowed=allowed, n=3))
    with pytest.raises(RateLimited, match=r"4 answers at once\. 3 used, this request needs 2"):
        await quotas.reserve(call("b", allowed=allowed, n=2))
    await quotas.reserve(call("c", allowed=allowed, prompt=["a"] * 9, embeds=True))
    with pytest.raises(RateLimited):
        await quotas.reserve(call("d", allowed=allowed))
    quotas.settle(first, tokens=1, nanodollars=0)
    prompts = call("e", allowed=allowed, prompt=["a", "b"], params={"best_of": 1})
    second = await reserve(quotas, prompts)
    with pytest.raises(RateLimited, match="3 used, this request needs 2"):
        await quotas.reserve(call("f", allowed=allowed, prompt="a", params={"best_of": 2}))
    quotas.settle(second, tokens=1, nanodollars=0)
    await quotas.reserve(call("g", allowed=allowed, n=3))


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"n": 5}, "n"),
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"prompt": "a", "params": {"best_of": 5}}, "prompt"),
    ],
)
async def test_more_answers_than_may_ever_be_in_flight(
    quotas: Quotas, asked: dict[str, Any], param: str
) -> None:
    with pytest.raises(TooManyAnswers, match=r"5 answers at once .* 4 answers at once\. Ask for") as refused:
        await quotas.reserve(call(allowed={"concurrent_requests": 4}, **asked))
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "too_many_answers", param)
    assert refused.value.headers["x-should-retry"] == "false"
    await quotas.reserve(call(allowed={"concurrent_requests": 5}, **asked))


async def test_what_was_not_used_is_given_back(quotas: Quotas) -> None:
    allowed = {"tokens_per_minute": 1000}
    first = await reserve(quotas, call("a", allowed=allowed, params={"max_tokens": 900}))
    quotas.settle(first, tokens=100, nanodollars=0)
    made = call("b", allowed=allowed, params={"max_tokens": 850})
    await quotas.reserve(made)
    assert made.estimate is not None
    assert int(made.reply_headers["x-ratelimit-remaining-tokens"]) == 900 - 425 - made.estimate.prompt


async def test_what_is_learned_outlives_a_policy() -> None:
    first = Quotas.open(policy())
    made = call()
    await first.reserve(made)
    first.estimator.learn(made, Usage(9, 33))
    second = Quotas.open(policy(), estimator=first.estimator)
    await second.reserve(made)
    estimate = made.estimated()
    assert estimate is not None
    assert estimate.expected == 33


async def test_redis(own_redis: RedisServer) -> None:
    quotas = Quotas.open(policy(store=own_redis.url))
    allowed = {"concurrent_requests": 1}
    for i in range(20):
        held = await reserve(quotas, call(f"test-quotas-{i}", allowed=allowed))
        quotas.settle(held, tokens=1, nanodollars=1)
    await quotas.aclose()


async def test_the_store_is_away() -> None:
    away = "redis://127.0.0.1:1/0"
    quotas = Quotas(away)
    allowed = {"requests_per_minute": 1}
    for mode, refused in [("open", None), ("closed", Overloaded), ("local", RateLimited)]:
        more = {"store": away, "on_store_failure": mode}
        for i in range(2):
            made = call(f"{mode}{i}", allowed=allowed, more=more)
            if refused and (i or mode == "closed"):
                with pytest.raises(refused):
                    await quotas.reserve(made)
            else:
                await quotas.reserve(made)
                assert bool(made.reply_headers) == (mode == "local")
                assert ("quota" in made.receipt.notes) == (mode == "open")
    quotas._counters._store._settlements.clear()  # type: ignore[attr-defined]
    await quotas.aclose()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.12, "120ms"),
        (1, "1s"),
        (7.66, "7.66s"),
        (59.9999, "1m0s"),
        (60, "1m0s"),
        (64.5, "1m4.5s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (90_061.25, "25h1m1.25s"),
    ],
)
async def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
