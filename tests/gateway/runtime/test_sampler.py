"""What a worker looks at for its gauges: real breakers, budgets, Redis and sidecar, each down once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.admission import speed
from gateway.observe import batch_writer
from gateway.runtime import sampler
from tests.fakes import FakeUpstream, Script, reply
from tests.redis_server import RedisServer
from tests.serving import Gateway, a_policy, chat, serving

pytestmark = pytest.mark.anyio


async def until(gateway: Gateway, name: str, value: float | None) -> None:
    """Wait for a metric to have a value; it is sampled once a second."""
    async with asyncio.timeout(60):
        while (await gateway.metrics()).get(name) != value:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def ask(gateway: Gateway, model: str = "fake", **more: Any) -> int:
    return (await gateway.http.post("/v1/chat/completions", json=chat(model, **more))).status_code


async def test_a_breaker_is_open_and_the_others_are_closed(tmp_path: Path) -> None:
    policy = a_policy("http://127.0.0.1:1/v1")
    policy["models"]["down"]["retry"] = {"attempts": 1}
    policy["backends"]["down"]["breaker"] = {"failures": 2, "cooldown": "60s"}
    async with serving(tmp_path / "policies", policy) as gateway:
        for _ in range(6):
            await ask(gateway, "down")
        opened = 'tollgate_breaker_state{backend="down",model="x"}'
        async with asyncio.timeout(60):
            while not (metrics := await gateway.metrics()).get(opened):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert metrics[opened] in (1.0, 2.0)
        assert metrics['tollgate_breaker_state{backend="scripted",model="x"}'] == 0.0
        assert metrics['tollgate_backend_saturation{backend="scripted"}'] == 0.0


async def test_the_states_of_an_engines_models_are_told_while_it_tells_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "INTERVAL", 0.05)
    monkeypatch.setattr(speed, "ENGINE_FIGURES_TTL", 1.0)

    def telling(state: str) -> Script:
        return reply({"models": {"small": {"value": state}, "large": {"value": "loaded", "loads": 1}}})

    async with FakeUpstream() as engine:
        engine.health = telling("sleeping")
        policy = a_policy("http://127.0.0.1:1/v1")
        policy["backends"]["own"] = {"kind": "engine", "base_url": engine.base_url.removesuffix("/v1")}
        policy["models"]["own"] = {"targets": [{"backend": "own", "model": "small"}]}
        async with serving(tmp_path / "policies", policy) as gateway:
            named = 'tollgate_model_state{{backend="own",model="{}",state="{}"}}'.format
            await until(gateway, named("small", "sleeping"), 1.0)
            await until(gateway, named("large", "loaded"), 1.0)
            engine.health = telling("loading")
            await until(gateway, named("small", "loading"), 1.0)
            await until(gateway, named("small", "sleeping"), None)
            await engine.stop()
            await until(gateway, named("small", "loading"), None)


async def test_a_rejected_policy_shows_until_it_is_mended(tmp_path: Path) -> None:
    policy = a_policy("http://127.0.0.1:1/v1")
    async with serving(tmp_path / "policies", policy) as gateway:
        await until(gateway, "tollgate_policy_rejected", 0.0)
        gateway.write("version: 2")
        await until(gateway, "tollgate_policy_rejected", 1.0)
        gateway.write(policy)
        await until(gateway, "tollgate_policy_rejected", 0.0)


async def test_budgets_are_told_by_tenant_and_counted_once_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "BUDGETS_EVERY", 0.0)
    tenants = {"acme": {"budget": {"usd_per_day": 5}}, "other": {"budget": {"usd_per_month": 5}}}
    more: dict[str, Any] = {"prices": {"x": {"input": 100_000.0, "output": 100_000.0}}, "tenants": tenants}
    async with serving(tmp_path / "policies", a_policy("http://127.0.0.1:1/v1", **more)) as gateway:
        await until(gateway, 'tollgate_budget_used_ratio{tenant="acme",window="day"}', 0.0)
        assert await ask(gateway, max_tokens=3) == 200  # one token in and three out, at 10 cents each
        await until(gateway, 'tollgate_budget_used_ratio{tenant="acme",window="day"}', 0.08)
        await until(gateway, 'tollgate_tenants_over_budget{window="day"}', 0.0)
        tenants["acme"]["budget"]["usd_per_day"] = 0.4
        gateway.write(a_policy("http://127.0.0.1:1/v1", **more))
        await until(gateway, 'tollgate_tenants_over_budget{window="day"}', 1.0)
        await until(gateway, 'tollgate_budget_used_ratio{tenant="other",window="month"}', 0.0)


async def test_a_store_that_is_down(tmp_path: Path, own_redis: RedisServer) -> None:
    more = {"store": own_redis.url, "tiers": {"default": {"quotas": {"requests_per_minute": 1000}}}}
    async with serving(tmp_path / "policies", a_policy("http://127.0.0.1:1/v1", **more)) as gateway:
        assert await ask(gateway) == 200
        await until(gateway, 'tollgate_store_up{store="quotas"}', 1.0)
        own_redis.kill()
        assert await ask(gateway) == 200  # by this worker's own share
        await until(gateway, 'tollgate_store_up{store="quotas"}', 0.0)
        await until(gateway, 'tollgate_store_up{store="receipts"}', 0.0)
        own_redis.start()
        await until(gateway, 'tollgate_store_up{store="quotas"}', 1.0)


async def test_a_sidecar_that_is_needed_and_is_not_there(tmp_path: Path) -> None:
    semantic = {"caches": {"semantic": {"threshold": 0.95}}}
    async with serving(tmp_path / "policies", a_policy("http://127.0.0.1:1/v1", **semantic)) as gateway:
        await until(gateway, 'tollgate_sidecar_up{worker="1"}', 0.0)
        gateway.write(a_policy("http://127.0.0.1:1/v1"))
        await until(gateway, 'tollgate_sidecar_up{worker="1"}', None)


async def test_rows_that_the_ledger_loses_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writer, "BACKLOG", 0)
    async with serving(tmp_path / "policies", a_policy("http://127.0.0.1:1/v1")) as gateway:
        assert await ask(gateway) == 200
        await until(gateway, "tollgate_ledger_rows_lost_total", 1.0)
        assert (await gateway.metrics())["tollgate_ledger_rows_waiting"] == 0.0
