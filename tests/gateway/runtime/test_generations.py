"""From one policy generation to the next: what is kept, what is closed, and when."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.databases.sqlite import SqliteDatabase
from gateway.errors import BudgetSpent
from gateway.observe.ended import Ended
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.metrics import Metrics
from gateway.policy.loader import Loaded
from gateway.runtime.generations import Generations
from gateway.runtime.runtime import Runtime
from gateway.runtime.worker_state import WorkerState
from gateway.stores.redis import RedisStore
from gateway.types import Backend, Principal, Usage
from tests.conftest import RedisServer
from tests.fakes import a_bill, a_call, policy

pytestmark = pytest.mark.anyio


class Watched(httpx.AsyncBaseTransport):
    """A transport that knows whether it has been closed."""

    def __init__(self) -> None:
        self.closed = 0

    async def aclose(self) -> None:
        self.closed += 1


def openai(port: int = 1, **more: Any) -> dict[str, Any]:
    return {"kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1", **more}


def loaded(backends: dict[str, Any], disabled: dict[str, str] | None = None, **more: Any) -> Loaded:
    models = {"m": {"targets": [{"backend": next(iter(backends), "none"), "model": "x"}]}}
    return Loaded(policy(backends=backends, models=models, **more), disabled or {}, "", ())


@pytest.fixture
async def generations() -> AsyncIterator[Generations]:
    generations = Generations(WorkerState(Metrics(), transport=Watched))
    yield generations
    await generations.aclose()


def transport_of(backend: Backend) -> Watched:
    transport = backend._exchange._client._given  # type: ignore[attr-defined]
    assert isinstance(transport, Watched)
    return transport


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_before_any_policy_there_is_no_runtime() -> None:
    generations = Generations(WorkerState(Metrics()))
    with pytest.raises(RuntimeError):
        generations.current()
    await generations.aclose()


async def test_unchanged_backends_live_on_and_changed_ones_are_replaced(generations: Generations) -> None:
    await generations.apply_policy(loaded({"same": openai(1), "changed": openai(2), "gone": openai(3)}))
    old = generations.current()
    await generations.apply_policy(loaded({"same": openai(1), "changed": openai(4), "new": openai(5)}))
    new = generations.current()
    assert new.backends["same"] is old.backends["same"]
    assert new.backends["changed"] is not old.backends["changed"]
    assert set(new.backends) == {"same", "changed", "new"}
    assert new.receipts is old.receipts
    await settle()
    assert [transport_of(old.backends[name]).closed for name in ("same", "changed", "gone")] == [0, 1, 1]
    assert transport_of(new.backends["changed"]).closed == 0


async def test_a_changed_key_makes_a_new_backend(generations: Generations) -> None:
    await generations.apply_policy(loaded({"up": openai(api_key="a")}))
    old = generations.current().backends["up"]
    await generations.apply_policy(loaded({"up": openai(api_key="b")}))
    assert generations.current().backends["up"] is not old


async def test_a_backend_in_use_is_closed_after_its_last_call(generations: Generations) -> None:
    await generations.apply_policy(loaded({"up": openai(1)}))
    old = generations.current()
    with old.in_use():
        with old.in_use():
            await generations.apply_policy(loaded({"up": openai(2)}))
            await settle()
        await settle()
        assert transport_of(old.backends["up"]).closed == 0
    await settle()
    assert transport_of(old.backends["up"]).closed == 1


async def test_an_older_generation_keeps_what_a_newer_one_let_go(generations: Generations) -> None:
    await generations.apply_policy(loaded({"up": openai(1)}))
    first = generations.current()
    with first.in_use():
        await generations.apply_policy(loaded({"up": openai(1), "more": openai(2)}))
        await generations.apply_policy(loaded({"more": openai(2)}))
        await settle()
        assert transport_of(first.backends["up"]).closed == 0, "the first generation is still using it"
    await settle()
    assert transport_of(first.backends["up"]).closed == 1


async def test_a_newer_generation_keeps_what_an_older_one_let_go(generations: Generations) -> None:
    await generations.apply_policy(loaded({"up": openai(1)}))
    first = generations.current()
    with first.in_use():
        await generations.apply_policy(loaded({"up": openai(1), "more": openai(2)}))
        second = generations.current()
        hold = second.in_use()
        hold.__enter__()
        await generations.apply_policy(loaded({"more": openai(2)}))
    await settle()
    assert transport_of(first.backends["up"]).closed == 0, "the second generation is still using it"
    hold.__exit__(None, None, None)
    await settle()
    assert transport_of(first.backends["up"]).closed == 1


async def test_closing_closes_everything_used_or_not() -> None:
    generations = Generations(WorkerState(Metrics(), transport=Watched))
    await generations.apply_policy(loaded({"old": openai(1), "same": openai(2)}))
    old = generations.current()
    with old.in_use():
        await generations.apply_policy(loaded({"same": openai(2)}))
        await settle()
        await generations.aclose()
    assert [transport_of(backend).closed for backend in old.backends.values()] == [1, 1]


async def test_disabled_backends_are_not_built_and_said_so(
    generations: Generations, caplog: pytest.LogCaptureFixture
) -> None:
    both = {"up": openai(1), "off": openai(2)}
    with caplog.at_level(logging.WARNING):
        await generations.apply_policy(loaded(both, {"off": "KEY is not set"}))
    assert set(generations.current().backends) == {"up"}
    assert "'off' is disabled: KEY is not set" in caplog.text
    await generations.apply_policy(loaded(both))
    assert set(generations.current().backends) == {"up", "off"}


async def test_every_kind_of_backend_is_built() -> None:
    generations = Generations(WorkerState(Metrics()))
    kinds = {
        "fake": {"kind": "fake", "script": [{"reply": "Hi"}]},
        "openai": openai(1, api_key="sk"),
        "engine": {"kind": "engine", "base_url": "http://127.0.0.1:8100/"},
        "claude": {"kind": "anthropic", "api_key": "sk-ant"},
    }
    await generations.apply_policy(loaded(kinds))
    backends: Any = generations.current().backends
    assert {name: backend.name for name, backend in backends.items()} == {name: name for name in kinds}
    chat = backends["engine"]._endpoints["/chat/completions"]
    assert chat.url == "http://127.0.0.1:8100/v1/chat/completions"
    assert backends["engine"]._health.url == "http://127.0.0.1:8100/health"
    assert backends["openai"]._health.url == "http://127.0.0.1:1/v1/models"
    assert backends["openai"]._headers["authorization"] == "Bearer sk"
    assert backends["claude"]._messages.url == "https://api.anthropic.com/v1/messages"
    assert backends["claude"]._headers["x-api-key"] == "sk-ant"
    await generations.aclose()


async def test_a_new_store_takes_new_receipts_and_the_old_one_is_closed(
    generations: Generations, redis_server: RedisServer
) -> None:
    await generations.apply_policy(loaded({"up": openai(1)}))
    old = generations.current()
    await generations.apply_policy(loaded({"up": openai(1)}, store=redis_server.url))
    new = generations.current()
    assert new.receipts is not old.receipts
    assert new.backends["up"] is old.backends["up"]
    async with asyncio.timeout(300):
        while not old.receipts._writer.closed:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert not new.receipts._writer.closed


async def test_the_generations_are_counted() -> None:
    metrics = Metrics()
    generations = Generations(WorkerState(metrics))
    for _ in range(3):
        await generations.apply_policy(loaded({"up": openai(1)}))
    assert b"tollgate_policy_generation 3.0" in metrics.render()
    await generations.aclose()


async def test_a_runtime_out_of_use_says_so(generations: Generations) -> None:
    await generations.apply_policy(loaded({"up": openai(1)}))
    runtime: Runtime = generations.current()
    await asyncio.wait_for(runtime.unused(), 1)
    with runtime.in_use(), pytest.raises(TimeoutError):
        await asyncio.wait_for(runtime.unused(), 0.01)
    await asyncio.wait_for(runtime.unused(), 1)


@pytest.mark.parametrize("store", ["memory", "redis://127.0.0.1:1/0"])
async def test_a_budget_that_the_ledger_knows_to_be_spent_does_not_begin_anew(
    tmp_path: Path, store: str
) -> None:
    """After a restart, or in the worker that takes a dead one's place; with Redis, while that is away."""
    ledger = Ledger(SqliteDatabase(tmp_path / "ledger.sqlite"))
    spent = a_call(principal=Principal("k", "acme"), request_id="before")
    spent.receipt.created = time.time()
    ledger.record(Ended(spent, a_bill(Usage(400, 100), 500_000_000), 200))
    await ledger.aclose()
    generations = Generations(WorkerState(Metrics(), transport=Watched, state_dir=tmp_path))
    budgets: dict[str, Any] = {
        "tenants": {"acme": {"budget": {"usd_per_month": 0.5}}, "other": {"quotas": {}}}
    }
    budgets["tenants"]["other"]["budget"] = {"usd_per_month": 0.5}
    prices = {"x": {"input": 1.0, "output": 1.0}}
    for _ in range(2):  # a reload counts nothing twice
        await generations.apply_policy(loaded({"up": openai()}, prices=prices, store=store, **budgets))
    runtime = generations.current()
    with pytest.raises(BudgetSpent, match=r"\$0.5 per month. \$0.5 used"):
        await runtime.quotas.reserve(a_call(policy_=runtime.policy, principal=Principal("k", "acme")))
    assert await runtime.quotas.reserve(
        a_call(policy_=runtime.policy, principal=Principal("o", "other"), request_id="b")
    )
    await generations.aclose()


async def test_a_ledger_that_cannot_be_read_keeps_nobody_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ledger.sqlite").write_text(
        "This is a text, and long enough to be taken for a database's page."
    )
    generations = Generations(WorkerState(Metrics(), transport=Watched, state_dir=tmp_path))
    budgets = {"tenants": {"acme": {"budget": {"usd_per_month": 0.5}}}}
    await generations.apply_policy(loaded({"up": openai()}, **budgets))
    assert "earlier usage is unknown" in caplog.text
    await generations.aclose()


async def test_caches_and_receipts_may_have_a_store_of_their_own(redis_server: RedisServer) -> None:
    generations = Generations(WorkerState(Metrics(), transport=Watched))
    caches = {"exact": {}}
    await generations.apply_policy(loaded({"up": openai()}, caches=caches, cache_store=redis_server.url))
    first = generations.current()
    assert isinstance(first.receipts.store, RedisStore)
    await generations.apply_policy(
        loaded({"up": openai()}, caches=caches, cache_store=redis_server.url, store="redis://127.0.0.1:1/0")
    )
    second = generations.current()
    assert second.receipts is first.receipts
    assert second.quotas is not first.quotas
    await generations.aclose()
