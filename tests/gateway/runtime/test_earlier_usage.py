"""Budgets after a restart of everything: what was spent is spent, wherever the ledger is and whatever counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.backoff import Backoff
from gateway.databases.database import Database
from gateway.databases.postgres import PostgresDatabase
from gateway.runtime import earlier_usage
from tests.ledgers import rows, told
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer
from tests.serving import Gateway, a_policy, chat, serving

pytestmark = pytest.mark.anyio

DOLLARS = {"scripted/*": {"input": 0.0, "output": 100_000.0}}
"""For a million tokens: each of the three words that the script says costs ten cents."""


def policy(ledger: str, **more: Any) -> dict[str, Any]:
    budget = {"acme": {"budget": {"usd_per_month": 1.0}}, "other": {"budget": {"usd_per_month": 1.0}}}
    return a_policy("http://127.0.0.1:1/v1", prices=DOLLARS, tenants=budget, ledger={"store": ledger}, **more)


async def ask(gateway: Gateway) -> httpx.Response:
    return await gateway.http.post("/v1/chat/completions", json={**chat("fake"), "max_tokens": 3})


async def spend(gateway: Gateway) -> None:
    while (response := await ask(gateway)).status_code == 200:
        pass
    assert response.json()["error"]["code"] == "insufficient_quota", response.text


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not await asyncio.to_thread(true):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_a_spent_budget_stays_spent_when_everything_was_restarted_and_redis_lost_its_data(
    tmp_path: Path, database: Database, store: str, own_redis: RedisServer
) -> None:
    where = told(database) if isinstance(database, PostgresDatabase) else "sqlite"
    settings = policy(where, store=own_redis.url if store == "redis" else "memory")
    async with serving(tmp_path / "policies", settings, state_dir=tmp_path) as gateway:
        await spend(gateway)
    own_redis.kill()
    own_redis.start()
    async with serving(tmp_path / "policies", settings, state_dir=tmp_path) as gateway:
        response = await ask(gateway)
        assert (response.status_code, response.json()["error"]["code"]) == (429, "insufficient_quota")
    assert sum(row["cost_nanodollars"] for row in rows(database)) >= 900_000_000


async def test_a_ledger_that_was_away_at_the_start_is_read_once_it_answers(
    tmp_path: Path, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier_usage, "BACKOFF", Backoff(0.05, most=60.0))
    settings = policy(own_postgres.url(own_postgres.new_database()))
    async with serving(tmp_path / "policies", settings) as gateway:
        await spend(gateway)
    own_postgres.stop()
    async with serving(tmp_path / "policies", settings) as gateway:
        assert (await ask(gateway)).status_code == 200, "nobody knows better"
        own_postgres.start()

        async def refused() -> bool:
            return (await ask(gateway)).status_code == 429

        async with asyncio.timeout(300):
            while not await refused():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
