"""From the reservation to the backend: what each attempt of one request may send, and what is left of it."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from gateway.admission.pools import Pools
from gateway.errors import BudgetSpent, UpstreamFailed
from gateway.metering.price import NANO, cost
from gateway.observe.metrics import Metrics
from gateway.policy.schema import Budget, Target, Timeouts
from gateway.quota.prompt_bound import most_tokens
from gateway.quota.quotas import Quotas
from gateway.stages.record import Observers, record
from gateway.types import Call, Candidate, Chunk, Chunks, Principal, Usage
from tests.fakes import a_call, policy
from tests.gateway.upstream_loops import attempts

pytestmark = pytest.mark.anyio

PRICES = {"cheap": {"input": 1.0, "output": 10.0}, "dear": {"input": 5.0, "output": 5000.0}}
RULES = policy(
    backends={name: {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"} for name in ("up", "other")},
    models={
        "m": {"targets": [{"backend": "up", "model": "cheap"}], "retry": {"attempts": 1}},
        "f": {"targets": [{"backend": "other", "model": "cheap"}], "retry": {"attempts": 1}},
        "d": {"targets": [{"backend": "other", "model": "dear"}], "retry": {"attempts": 1}},
    },
    prices=PRICES,
)


class Servers:
    """Each computes as much as its cap allows, and breaks off at the end where it is told to."""

    def __init__(self, *breaks: bool) -> None:
        self.breaks = [*breaks]
        self.asked: list[tuple[str, int | None]] = []
        self.nanodollars = 0

    async def __call__(self, call: Call) -> Chunks:
        assert call.target is not None
        self.asked.append((call.target.model, call.cap))
        declared = call.request.params.get("max_tokens", 10**6)
        usage = Usage(most_tokens(call.request), declared if call.cap is None else call.cap)
        self.nanodollars += cost(call.policy, call.target, usage)
        yield Chunk(delta={"role": "assistant", "content": ""}, usage=usage)
        if self.breaks.pop(0) if self.breaks else False:
            raise UpstreamFailed("gone")
        yield Chunk(delta={"content": "all of it"})
        yield Chunk(delta={}, finish_reason="length", usage=usage)


async def ask(servers: Servers, budget: float, *models: str, **request: Any) -> Call:
    quotas, metrics = Quotas("memory"), Metrics()
    pools = Pools()
    pools.update(RULES)
    handler = record(Observers(quotas))(attempts(servers, RULES, pools=pools, metrics=metrics))
    call = a_call(
        policy_=RULES, principal=Principal("k", "acme", budget=Budget(usd_per_day=budget)), **request
    )
    call.candidates = tuple(
        Candidate(name, RULES.models[name].targets[0], Timeouts(), "fallback" if i else "primary")
        for i, name in enumerate(models)
    )
    async with aclosing(handler(call)) as chunks:
        assert [chunk async for chunk in chunks]
    return call


async def test_what_a_broken_attempt_has_cost_is_not_there_for_the_next() -> None:
    servers = Servers(True)
    call = await ask(servers, 0.015, "m", "f", params={"max_tokens": 1000})
    assert [name for name, _ in servers.asked] == ["cheap", "cheap"]
    first, second = (cap for _, cap in servers.asked)
    assert first is None
    assert second is not None
    assert 16 <= second < 500
    assert servers.nanodollars <= 0.015 * NANO
    assert call.receipt.notes["quota"]["cost_usd"] == servers.nanodollars / NANO


async def test_a_fallback_that_nobody_can_pay_is_not_asked_and_the_next_is() -> None:
    servers = Servers(True)
    call = await ask(servers, 0.03, "m", "d", "f", params={"max_tokens": 1000})
    assert [name for name, _ in servers.asked] == ["cheap", "cheap"]
    assert servers.nanodollars <= 0.03 * NANO
    attempts = call.receipt.notes["fallback"]["attempts"]
    assert [one.get("admitted", True) for one in attempts] == [True, False, True]
    assert call.reply_headers["x-tollgate-attempts"] == "2"
    assert attempts[1]["outcome"] == "insufficient_quota"


async def test_where_nobody_can_be_paid_it_is_said_so() -> None:
    servers = Servers(True)
    with pytest.raises(UpstreamFailed):  # the caller's own model is what he hears of
        await ask(servers, 0.01012, "m", "f", params={"max_tokens": 1000})
    assert len(servers.asked) == 1
    assert servers.nanodollars <= 0.01012 * NANO
    with pytest.raises(BudgetSpent):
        await ask(Servers(), 0.0001, "d", params={"max_tokens": 1000})


def test_the_prices_are_as_the_story_needs_them() -> None:
    assert cost(RULES, Target(backend="other", model="dear"), Usage(0, 16)) > 0.03 * NANO
