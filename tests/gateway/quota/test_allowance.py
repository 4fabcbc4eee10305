"""A budget is a promise: whatever is asked, retried and left, what is sent upstream has been paid for beforehand."""

from __future__ import annotations

import asyncio
import gc
import secrets
import weakref
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import BudgetSpent, GatewayError, RateLimited
from gateway.metering.estimate import unseen_tokens
from gateway.metering.price import NANO, cost
from gateway.policy.schema import Budget, QuotaSettings, Timeouts
from gateway.quota.allowance import Reservation
from gateway.quota.prompt_bound import most_tokens
from gateway.quota.quota_request import COMPLETION, FEWEST, LARGEST, OVERSHOOT
from gateway.quota.quotas import Quotas
from gateway.types import Call, Candidate, Principal, TokenEstimate, UpstreamUsage, Usage
from tests.conftest import RedisServer
from tests.examples import examples
from tests.fakes import TARGET, a_call, policy

pytestmark = pytest.mark.anyio

PRICES = {"upstream-model": {"input": 1.0, "output": 10.0}, "dear": {"input": 5.0, "output": 50.0}}
MODELS: dict[str, Any] = {
    "m": {"targets": [{"backend": "up", "model": "upstream-model"}], "fallbacks": ["dear"]},
    "dear": {"targets": [{"backend": "up", "model": "dear"}]},
    "known": {"targets": [{"backend": "up", "model": "upstream-model"}], "max_output": 500},
}
RULES = policy(models=MODELS, prices=PRICES)
DEAR = TARGET.model_copy(update={"model": "dear"})


def call(
    request_id: str = "a",
    *,
    allowed: dict[str, Any] | None = None,
    budget: float | None = None,
    key: str = "k",
    **request: Any,
) -> Call:
    caller = Principal(
        key, "acme", quotas=QuotaSettings(**(allowed or {})), budget=Budget(usd_per_day=budget)
    )
    made = a_call(policy_=RULES, principal=caller, **request)
    made.request_id = request_id
    return made


def attempt(made: Call, model: str = "") -> Call:
    """As ``fallback`` makes one."""
    name = model or made.model
    return replace(made, candidate=Candidate(name, DEAR if name == "dear" else TARGET, Timeouts()))


async def cap_of(quotas: Quotas, made: Call, model: str = "") -> int | None:
    reservation = await quotas.reserve(made)
    assert reservation is not None
    assert made.allowance is not None
    return await made.allowance.hold(attempt(made, model))


async def spent_by(quotas: Quotas, made: Call, usage: Usage) -> None:
    reservation = await quotas.reserve(made)
    assert reservation is not None
    tokens = usage.prompt + usage.completion
    quotas.settle(reservation, tokens=tokens, nanodollars=cost(RULES, TARGET, usage))


async def test_only_requests_are_limited() -> None:
    made = call(allowed={"requests_per_minute": 5, "concurrent_requests": 3})
    await Quotas("memory").reserve(made)
    assert made.allowance is None


class Headers(dict[str, str]):
    """Can be referred to weakly, as a call cannot."""


async def test_what_a_request_leaves_behind_is_freed_at_once() -> None:
    quotas = Quotas("memory")
    made = call(budget=1.0)
    made.headers = Headers()
    left = weakref.ref(made.headers)
    await quotas.reserve(made)
    assert made.allowance is not None
    await made.allowance.hold(made)
    made.allowance.release(made, UpstreamUsage(TARGET, Usage(9, 9)))
    gc.disable()
    try:
        del made
        assert left() is None, "it holds itself, and waits for the garbage collector"
    finally:
        gc.enable()


async def test_a_declared_cap_that_is_paid_for_is_sent_as_it_is() -> None:
    assert await cap_of(Quotas("memory"), call(budget=1.0, params={"max_tokens": 4096})) is None
    assert (
        await cap_of(Quotas("memory"), call(allowed={"tokens_per_minute": 9000}, params={"max_tokens": 99}))
        is None
    )


async def test_a_declared_cap_is_lowered_to_what_is_left() -> None:
    quotas = Quotas("memory")
    await spent_by(quotas, call("a", budget=0.1), Usage(0, 9_000))
    cap = await cap_of(quotas, call("b", budget=0.1, params={"max_tokens": 4096}))
    made = call(budget=0.1)
    # A cent is left, of which the prompt may take what its bytes come to.
    assert cap == (10_000 - most_tokens(made.request, "openai")) // 10


async def test_without_a_cap_one_is_sent_unless_the_most_of_the_model_is_paid_for() -> None:
    assert await cap_of(Quotas("memory"), call(budget=10.0)) == LARGEST
    assert await cap_of(Quotas("memory"), call(budget=10.0, model="known")) is None
    cap = await cap_of(Quotas("memory"), call(budget=0.005, model="known"))
    assert cap is not None
    assert FEWEST <= cap < 500


async def test_raw_completions_have_their_apis_default() -> None:
    assert await cap_of(Quotas("memory"), call(budget=10.0, prompt="Once")) == COMPLETION


async def test_embeddings_have_no_cap() -> None:
    assert await cap_of(Quotas("memory"), call(budget=0.001, prompt="Once", embeds=True)) is None


async def test_many_without_a_cap_share_a_budget() -> None:
    quotas, caps = Quotas("memory"), []
    for i in range(1000):
        made = call(str(i), budget=1.0)
        try:
            caps.append(await cap_of(quotas, made))
        except RateLimited as error:
            assert not isinstance(error, BudgetSpent)
            assert error.retry_after is not None
            assert error.retry_after < 5
    assert len(caps) > 15
    assert sum(cap or 10**9 for cap in caps) * 10 < NANO / 1000
    assert min(cap or 0 for cap in caps) >= 512


async def test_learned_to_be_short_and_then_long() -> None:
    """The attack: answers of one token, then a thousand of four thousand at once."""
    for strict, most in ((False, OVERSHOOT * 10_000), (True, 10_000)):
        quotas, allowed = Quotas("memory"), {"tokens_per_minute": 10_000, "strict": strict}
        for _ in range(60):
            made = call(allowed={"tokens_per_minute": 10**6})
            await quotas.reserve(made)
            quotas.estimator.learn(made, Usage(8, 1))
        used, held = 0, []
        for i in range(1000):
            made = call(str(i), allowed=allowed)
            try:
                reservation = await quotas.reserve(made)
            except RateLimited:
                continue
            assert made.allowance is not None
            assert reservation is not None
            cap = await made.allowance.hold(attempt(made))
            tokens = 8 + min(4000, cap or 10**9)
            used += tokens
            held.append((reservation, tokens))
        assert 0 < used <= most
        for reservation, tokens in held:
            quotas.settle(reservation, tokens=tokens, nanodollars=0)


async def test_a_short_follow_up_fits_beside_what_was_used() -> None:
    quotas, allowed = Quotas("memory"), {"tokens_per_minute": 200}
    made = call("a", allowed=allowed)
    reservation = await quotas.reserve(made)
    assert reservation is not None
    quotas.estimator.learn(made, Usage(10, 100))
    quotas.settle(reservation, tokens=110, nanodollars=0)
    cap = await cap_of(quotas, call("b", allowed=allowed))
    assert cap is not None
    assert cap >= 50


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("declared", [4_096, 16_000])
async def test_nearly_all_of_a_quota_can_be_used_with_large_caps(declared: int, strict: bool) -> None:
    quotas = Quotas("memory")
    allowed = {"tokens_per_minute": 12_000, "strict": strict}
    used, refused = 0, 0
    while refused < 3:
        made = call(f"{used}-{refused}", allowed=allowed, params={"max_tokens": declared})
        try:
            reservation = await quotas.reserve(made)
        except RateLimited:
            refused += 1
            continue
        assert reservation is not None
        assert made.allowance is not None
        cap = await made.allowance.hold(attempt(made))
        usage = Usage(9, min(100, cap or declared))
        quotas.estimator.learn(made, usage)
        used += usage.prompt + usage.completion
        quotas.settle(reservation, tokens=usage.prompt + usage.completion, nanodollars=0)
    assert 0.95 * 12_000 <= used <= 12_000 * (1 if strict else 1.02)


async def test_another_attempt_is_held_beside_what_the_first_has_spent() -> None:
    quotas = Quotas("memory")
    made = call(budget=0.02, params={"max_tokens": 1000})
    reservation = await quotas.reserve(made)
    assert reservation is not None
    assert made.allowance is not None
    first = attempt(made)
    assert await made.allowance.hold(first) is None
    before = reservation.held
    made.allowance.release(first)
    again = attempt(made)
    assert await made.allowance.hold(again) is None
    assert reservation.held == before, "nothing was computed, and it is enough for another try"
    made.allowance.release(again, UpstreamUsage(TARGET, Usage(10, 1000)))
    third = attempt(made)
    cap = await made.allowance.hold(third)
    assert cap is not None
    assert cap < 1000
    assert reservation.held.nanodollars <= 0.02 * NANO
    made.allowance.release(third, UpstreamUsage(TARGET, Usage(20, cap)))
    with pytest.raises(BudgetSpent):
        for _ in range(9):
            more = attempt(made)
            cap = await made.allowance.hold(more)
            made.allowance.release(
                more, UpstreamUsage(TARGET, Usage(most_tokens(made.request, "openai"), cap or 1000))
            )


async def test_a_dearer_fallback_is_paid_for_when_it_is_asked() -> None:
    quotas = Quotas("memory")
    made = call(budget=0.02, params={"max_tokens": 1000})
    await quotas.reserve(made)
    assert made.allowance is not None
    assert await made.allowance.hold(attempt(made)) is None
    made.allowance.release(made)
    other = attempt(made, "dear")
    cap = await made.allowance.hold(other)
    assert cap is not None
    assert FEWEST < cap < 400


async def test_two_attempts_side_by_side_share_what_there_is() -> None:
    quotas = Quotas("memory")
    made = call(budget=0.02, params={"max_tokens": 1500})
    reservation = await quotas.reserve(made)
    assert reservation is not None
    assert made.allowance is not None
    one, other = attempt(made), attempt(made)
    caps = await asyncio.gather(made.allowance.hold(one), made.allowance.hold(other))
    room = 2 * most_tokens(made.request, "openai") + sum((cap or 1500) * 10 for cap in caps)
    assert room <= reservation.held.nanodollars / 1000 <= 20_000


async def test_nothing_is_held_for_a_request_that_is_over() -> None:
    quotas = Quotas("memory")
    made = call(budget=1.0, params={"max_tokens": 100})
    reservation = await quotas.reserve(made)
    assert reservation is not None
    assert made.allowance is not None
    quotas.settle(reservation, tokens=0, nanodollars=0)
    made.allowance.release(made, UpstreamUsage(TARGET, Usage(10, 100)))
    with pytest.raises(RateLimited, match="over"):
        await made.allowance.hold(attempt(made))


# Any number of requests in any order, against a server that keeps to its cap.


@dataclass
class Customer:
    """Asks, tries, leaves; counts what the provider will bill."""

    quotas: Quotas
    strict: bool
    budget: float | None
    tokens: int | None
    key: str = field(default_factory=lambda: secrets.token_hex(8))
    nanodollars: int = 0
    used: int = 0
    in_flight: dict[int, tuple[Call, Reservation]] = field(default_factory=dict)
    trying: dict[int, tuple[Call, int]] = field(default_factory=dict)
    number: int = 0

    async def ask(self, who: int, words: int, cap: int | None, n: int) -> None:
        if who in self.in_flight:
            return
        self.number += 1
        made = call(
            f"{self.key}-{self.number}",
            key=self.key,
            allowed={"tokens_per_day": self.tokens, "strict": self.strict},
            budget=self.budget,
            messages=({"role": "user", "content": "é" * words},),
            params={} if cap is None else {"max_tokens": cap},
            n=n,
        )
        try:
            reservation = await self.quotas.reserve(made)
        except GatewayError:
            return
        assert reservation is not None
        self.in_flight[who] = made, reservation

    async def attempt(self, who: int, dear: bool) -> None:
        if who not in self.in_flight or who in self.trying:
            return
        made, _ = self.in_flight[who]
        tried = attempt(made, "dear" if dear else "m")
        assert made.allowance is not None
        try:
            cap = await made.allowance.hold(tried)
        except RateLimited:
            return
        asked = made.request.params.get("max_tokens")
        self.trying[who] = tried, min(one for one in (cap, asked) if one is not None)

    def answered(self, who: int, share: float, prompt_share: float) -> None:
        if who not in self.trying:
            return
        tried, cap = self.trying.pop(who)
        made, _ = self.in_flight[who]
        assert tried.target is not None
        assert made.allowance is not None
        if not share:
            made.allowance.release(tried)
            return
        assert made.estimate is not None
        # Without strict only the answers are promised: estimates of prompts may be off.
        most = (
            most_tokens(made.request, "openai")
            if self.strict or self.tokens is None
            else made.estimate.prompt
        )
        usage = Usage(int(most * prompt_share), int(cap * made.request.n * share))
        made.upstream_usage.append(UpstreamUsage(tried.target, usage))
        made.allowance.release(tried, made.upstream_usage[-1])
        self.nanodollars += cost(RULES, tried.target, usage)
        self.used += usage.prompt + usage.completion

    def leave(self, who: int) -> None:
        if who not in self.in_flight:
            return
        self.answered(who, 1, 1)
        made, reservation = self.in_flight.pop(who)
        self.quotas.settle(
            reservation,
            tokens=sum(one.usage.prompt + one.usage.completion for one in made.upstream_usage),
            nanodollars=sum(cost(RULES, one.target, one.usage) for one in made.upstream_usage),
        )

    def is_kept(self) -> bool:
        if self.budget is not None and self.nanodollars > self.budget * NANO:
            return False
        return self.tokens is None or self.used <= self.tokens * (1 if self.strict else OVERSHOOT)


who = st.integers(0, 5)
steps = st.one_of(
    st.tuples(
        st.just("ask"),
        who,
        st.integers(0, 60),
        st.none() | st.sampled_from([1, 50, 400, 10**6]),
        st.integers(1, 3),
    ),
    st.tuples(st.just("attempt"), who, st.booleans()),
    st.tuples(st.just("answered"), who, st.sampled_from([0, 0.1, 1]), st.sampled_from([0.1, 1])),
    st.tuples(st.just("leave"), who),
)


async def live(customer: Customer, story: list[tuple[Any, ...]]) -> None:
    for what, *rest in story:
        done = getattr(customer, what)(*rest)
        if done is not None:
            await done
        assert customer.is_kept()
    for one in range(6):
        customer.leave(one)
    assert customer.is_kept()


@settings(max_examples=examples(200))
@given(
    story=st.lists(steps, min_size=10, max_size=60),
    strict=st.booleans(),
    budget=st.none() | st.sampled_from([0.0005, 0.005, 0.05]),
    tokens=st.none() | st.sampled_from([150, 1_000, 20_000]),
)
def test_what_is_promised_is_kept(
    story: list[tuple[Any, ...]], strict: bool, budget: float | None, tokens: int | None
) -> None:
    if budget is None and tokens is None:
        budget = 0.01
    asyncio.run(live(Customer(Quotas("memory"), strict, budget, tokens), story))


@settings(max_examples=examples(25))
@given(story=st.lists(steps, min_size=10, max_size=40), strict=st.booleans())
def test_what_is_promised_is_kept_in_redis(
    redis_server: RedisServer, story: list[tuple[Any, ...]], strict: bool
) -> None:
    async def tell() -> None:
        quotas = Quotas(redis_server.url)
        try:
            await live(Customer(quotas, strict, 0.005, 1_000), story)
        finally:
            await quotas.aclose()

    asyncio.run(tell())


async def test_who_leaves_an_answer_that_nobody_hears_pays_what_was_held() -> None:
    """The attack: learned to be short, then long, and left before the end."""
    quotas = Quotas("memory")
    for _ in range(60):
        made = call(budget=1.0)
        await quotas.reserve(made)
        quotas.estimator.learn(made, Usage(8, 1))
    for model, most in (("m", 4_096), ("known", 500)):
        made = call(model, budget=10.0, model=model)
        await quotas.reserve(made)
        assert made.allowance is not None
        sent = attempt(made)
        assert unseen_tokens(sent, sent.estimate or TokenEstimate(0, 0, 0)) != most
        sent.cap = await made.allowance.hold(sent)
        assert unseen_tokens(sent, sent.estimate or TokenEstimate(0, 0, 0)) == most


FREE = {"upstream-model": {"input": 0.0, "output": 0.0}}


@pytest.mark.parametrize(
    ("allowed", "budget", "prices", "bound"),
    [
        ({}, 1.0, PRICES, True),
        ({"tokens_per_day": 9000, "strict": True}, None, PRICES, True),
        ({"tokens_per_day": 9000, "strict": True}, None, FREE, True),
        ({"tokens_per_day": 9000}, None, PRICES, False),
        ({"requests_per_minute": 9, "strict": True}, 1.0, FREE, False),
        ({"tokens_per_day": 9000}, 1.0, FREE, False),
    ],
)
async def test_bounds_are_held_under_strict_and_where_dollars_are(
    allowed: dict[str, Any], budget: float | None, prices: dict[str, Any], bound: bool
) -> None:
    made = call(allowed=allowed, budget=budget, params={"max_tokens": 100}, n=2)
    made.policy = policy(models={"m": MODELS["known"]}, prices=prices)
    await Quotas("memory").reserve(made)
    assert made.allowance is not None
    assert made.allowance.bounds(made) is None, "nothing is in flight"
    await made.allowance.hold(made)
    assert made.allowance.bounds(made) == ((most_tokens(made.request), 200) if bound else None)
    made.allowance.release(made)
    assert made.allowance.bounds(made) is None
