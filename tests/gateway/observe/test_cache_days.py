"""Tests for what the semantic cache found, by day."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.metering.bill import Bill
from gateway.observe.cache_days import CacheDays, read_cache_days
from gateway.types import Principal, Usage
from tests.fakes import a_bill, a_call

DAY = 86_400.0
MONDAY = 20_600 * DAY  # 2026-05-27
SHADOW_HIT = {"result": "miss", "semantic": "hit", "would_serve": True}
SHADOW_MISS = {"result": "miss", "semantic": "number", "would_serve": False}


def record(
    days: CacheDays, notes: dict[str, Any], *, at: float = MONDAY, tenant: str = "acme", tokens: int = 0
) -> None:
    call = a_call(principal=Principal("k", tenant), model="m")
    call.receipt.created = at
    call.receipt.note("cache", **notes)
    days.record(call, a_bill(Usage(tokens, 10), 1_500) if tokens else Bill())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cache_days.sqlite"


def test_shadow_hits_and_what_they_would_have_spared(path: Path) -> None:
    days = CacheDays(path)
    for _ in range(3):
        record(days, SHADOW_HIT, tokens=90)
    record(days, SHADOW_MISS, tokens=5_000)
    record(days, {**SHADOW_MISS, "semantic": "doubt"}, tokens=5_000)
    record(days, {**SHADOW_MISS, "semantic": "doubt"}, at=MONDAY + DAY - 1)
    record(days, {"result": "semantic", "semantic": "hit"}, at=MONDAY + DAY)
    asyncio.run(days.aclose())
    monday, tuesday = read_cache_days(path, since=0)
    assert (monday.day, monday.mode, monday.lookups, monday.hits) == ("2026-05-27", "shadow", 6, 3)
    assert (monday.hit_tokens, monday.hit_nanodollars) == (300, 4_500)
    assert [*monday.refused.items()] == [("doubt", 2), ("number", 1)]
    assert (tuesday.day, tuesday.mode, tuesday.lookups, tuesday.hits) == ("2026-05-28", "on", 1, 1)


@pytest.mark.parametrize(
    "notes", [{}, {"result": "exact", "age": 1.0}, {"result": "miss"}, {"result": "bypass"}]
)
def test_what_the_semantic_cache_was_not_asked_is_not_counted(path: Path, notes: dict[str, Any]) -> None:
    days = CacheDays(path)
    record(days, notes)
    asyncio.run(days.aclose())
    assert read_cache_days(path, since=0) == []


def test_by_tenant_of_one_and_between_days(path: Path) -> None:
    days = CacheDays(path)
    for number, tenant in enumerate(("acme", "acme", "zoo")):
        record(days, SHADOW_MISS, at=MONDAY + number * DAY, tenant=tenant)
    asyncio.run(days.aclose())
    assert [one.name for one in read_cache_days(path, since=0, by="tenant")] == ["acme", "acme", "zoo"]
    assert len(read_cache_days(path, since=0, tenant="acme")) == 2
    (found,) = read_cache_days(path, since=MONDAY + 1.5 * DAY, until=MONDAY + 1.5 * DAY)
    assert found.day == "2026-05-28"


def test_workers_and_restarts_add_to_the_same_days(path: Path) -> None:
    workers = [CacheDays(path) for _ in range(3)]
    for worker in workers:
        record(worker, SHADOW_HIT)
    for worker in workers:
        asyncio.run(worker.aclose())
    (found,) = read_cache_days(path, since=0)
    assert (found.lookups, found.hits) == (3, 3)
    assert path.stat().st_mode & 0o077 == 0


def test_a_file_that_was_removed_is_made_again(path: Path) -> None:
    days = CacheDays(path)
    record(days, SHADOW_HIT)
    assert days._writer.flush(5)
    path.unlink()
    record(days, SHADOW_MISS)
    asyncio.run(days.aclose())
    (found,) = read_cache_days(path, since=0)
    assert (found.lookups, found.hits) == (1, 0)


def test_none_yet(path: Path) -> None:
    assert read_cache_days(path, since=0) == []
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 1")
    assert read_cache_days(path, since=0) == []


BEFORE = """
CREATE TABLE semantic_days (
    day INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    mode TEXT NOT NULL,
    result TEXT NOT NULL,
    requests INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    nanodollars INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, model, mode, result)
) WITHOUT ROWID
"""


def test_a_file_from_before_it_had_a_version_goes_on(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(BEFORE)
        file.execute(
            "INSERT INTO semantic_days VALUES (?, 'acme', 'm', 'shadow', 'hit', 3, 300, 4500)", (MONDAY,)
        )
    (before,) = read_cache_days(path, since=0)
    assert (before.lookups, before.hits, before.hit_tokens) == (3, 3, 300)
    days = CacheDays(path)
    record(days, SHADOW_HIT, tokens=90)
    asyncio.run(days.aclose())
    (after,) = read_cache_days(path, since=0)
    assert (after.lookups, after.hits, after.hit_tokens, after.hit_nanodollars) == (4, 4, 400, 6_000)
    with closing(sqlite3.connect(path)) as file:
        assert BEFORE.strip() in file.execute("SELECT sql FROM sqlite_master").fetchone()[0], (
            "versions before go on"
        )
