"""What lines cost: half the price in receipts, ledger and budgets, and nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.batches.batch_table import BatchTable
from gateway.databases.database import DatabaseError
from gateway.databases.sqlite import SqliteDatabase
from tests.fakes import USAGE, Action, FakeUpstream, Script, completion, head, reply
from tests.gateway.batches.submitting import client, content, create, end, line, until
from tests.ledgers import rows
from tests.serving import KEY, Gateway, a_policy, key, serving

pytestmark = pytest.mark.anyio

PRICES = {"upstream-model": {"input": 1000.0, "output": 2000.0}}
"""Dollars for a million tokens."""
WHOLE = USAGE["prompt_tokens"] * 10**6 + USAGE["completion_tokens"] * 2 * 10**6
"""Nano-dollars for one answer."""


@asynccontextmanager
async def a_site(
    folder: Path, *scripts: Script, limits: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[tuple[Gateway, FakeUpstream, openai.AsyncOpenAI]]:
    """``limits`` are the key's."""
    async with FakeUpstream(*scripts) as up:
        policy = a_policy(up.base_url, prices=PRICES, **more)
        policy["models"]["up"]["retry"] = {"attempts": 1}
        policy["keys"] = [key(KEY, "acme-1", tenant="acme", **(limits or {}))]
        async with serving(folder / "policies", policy) as gateway, client(gateway) as acme:
            yield gateway, up, acme


def ledger(folder: Path) -> list[dict[str, Any]]:
    """Once the gateway has ended."""
    return rows(SqliteDatabase(folder / "state" / "ledger.sqlite"))


def lines(count: int) -> list[dict[str, Any]]:
    return [line(f"{i}", f"line {i}", model="up", max_tokens=3) for i in range(count)]


async def test_a_line_costs_half_and_its_receipt_says_so(tmp_path: Path) -> None:
    async with a_site(tmp_path) as (gateway, _, acme):
        done = await end(acme, await create(acme, *lines(3)))
        (first, *_) = await content(acme, done.output_file_id)
        name = first["response"]["request_id"]
        async with asyncio.timeout(300):
            while (found := await gateway.http.get(f"/v1/requests/{name}")).status_code == 404:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        noted = found.json()["stages"]["quota"]
        assert (noted["cost_usd"], noted["price_factor"]) == (WHOLE / 2 / 1e9, 0.5)
    found = ledger(tmp_path)
    assert [row["cost_nanodollars"] for row in found] == [WHOLE // 2] * 3
    assert {row["tenant"] for row in found} == {"acme"}


async def test_a_budget_holds_half_and_counts_half(tmp_path: Path) -> None:
    budget = {"budget": {"usd_per_day": 0.05}}
    async with a_site(tmp_path, limits=budget, batches={"max_concurrency": 1}) as (gateway, up, acme):
        refused = await gateway.http.post("/v1/chat/completions", json=lines(1)[0]["body"])
        assert refused.json()["error"]["code"] == "insufficient_quota"
        done = await end(acme, await create(acme, *lines(6)))
        assert done.request_counts is not None
        assert (done.status, done.request_counts.failed) == ("completed", 6 - len(up.requests))
        assert 2 <= len(up.requests) <= 4
        errors = await content(acme, done.error_file_id)
        assert {one["response"]["status_code"] for one in errors} == {429}
        assert {one["response"]["body"]["error"]["code"] for one in errors} == {"insufficient_quota"}


async def test_limits_by_the_minute_do_not_count_lines(tmp_path: Path) -> None:
    limits = {"quotas": {"requests_per_minute": 10, "tokens_per_minute": 50, "concurrent_requests": 1}}
    async with a_site(tmp_path, limits=limits) as (gateway, up, acme):
        batch = await create(acme, *lines(30))
        await asyncio.wait_for(up.arrived(30), 300)
        answer = await gateway.http.post("/v1/chat/completions", json=lines(1)[0]["body"])
        assert answer.status_code == 200
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) > 20
        del batch


async def test_a_day_s_tokens_count_lines_and_the_rest_waits(tmp_path: Path) -> None:
    async with a_site(tmp_path, limits={"quotas": {"tokens_per_day": 60}}) as (_, up, acme):
        batch = await until(acme, await create(acme, *lines(12)), 3)
        await asyncio.sleep(0.5)
        batch = await acme.batches.retrieve(batch.id)
        assert (batch.status, len(up.requests) <= 6) == ("in_progress", True)


async def test_a_run_that_is_repeated_is_charged_once_and_to_the_house_before(tmp_path: Path) -> None:
    busy = reply({"error": {"message": "busy"}}, status=503, headers={"retry-after": "0"})
    broken = (head(200, {"content-length": "1000", "content-type": "application/json"}) + b"{", Action.CLOSE)
    async with a_site(tmp_path, busy, broken, reply(completion())) as (_, up, acme):
        done = await end(acme, await create(acme, *lines(1)))
        assert done.request_counts is not None
        assert (done.request_counts.completed, len(up.requests)) == (1, 3)
    found = ledger(tmp_path)
    assert [(row["status"], row["cost_nanodollars"]) for row in found] == [(200, WHOLE // 2)]
    database = SqliteDatabase(tmp_path / "state" / "ledger.sqlite")
    others = rows(database, "SELECT * FROM spendings")
    assert {row["tenant"] for row in others} <= {"tollgate"}


async def test_a_server_that_fails_on_a_line_again_and_again_ends_it(tmp_path: Path) -> None:
    broken = reply({"error": {"message": "no"}}, status=500)
    async with a_site(tmp_path, broken) as (_, up, acme):
        done = await end(acme, await create(acme, *lines(1)))
        (error,) = await content(acme, done.error_file_id)
        assert (error["response"]["status_code"], len(up.requests)) == (502, 3)


async def test_what_the_ledger_has_is_not_charged_again_where_its_result_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after the ledger has the row, and before the line has its result."""
    settle, fails = BatchTable.settle, [True]

    def failing(self: BatchTable, *args: Any) -> Any:
        if fails:
            raise DatabaseError("the disk is full")
        return settle(self, *args)

    monkeypatch.setattr(BatchTable, "settle", failing)
    budget = {"budget": {"usd_per_day": 1.0}}
    async with a_site(tmp_path, limits=budget) as (_, up, acme):
        batch = await create(acme, *lines(4))
        await asyncio.wait_for(up.arrived(4), 300)
        await asyncio.sleep(0.3)
    assert [row["cost_nanodollars"] for row in ledger(tmp_path)] == [WHOLE // 2] * 4
    fails.clear()
    async with a_site(tmp_path, limits=budget) as (gateway, up, acme):
        done = await end(acme, await acme.batches.retrieve(batch.id))
        assert done.request_counts is not None
        assert (done.status, done.request_counts.completed, len(up.requests)) == ("completed", 4, 4)
        (output, *_) = await content(acme, done.output_file_id)
        receipt = await gateway.http.get(f"/v1/requests/{output['response']['request_id']}")
        assert receipt.json()["stages"]["quota"]["cost_usd"] == 0
    assert [row["cost_nanodollars"] for row in ledger(tmp_path)] == [WHOLE // 2] * 4
