"""Usage by what sums do not know, on both databases."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.databases.database import Database
from gateway.observe.ended import Ended
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.ledger.usage_detail import read_any_usage
from gateway.observe.ledger.usage_query import GROUPS, Group, Interval, UsageFilter, read_usage
from gateway.observe.ledger.usage_rows import roll_up
from gateway.types import Principal, Usage
from tests.fakes import a_bill, a_call

NOW = datetime(2027, 3, 10, 12, tzinfo=UTC)
SPAN = (NOW.replace(month=1, day=1).timestamp(), NOW.replace(hour=14).timestamp())


def record(database: Database, *rows: tuple[str, str, str, datetime]) -> None:
    """Each: a key of ``acme``, tags, why its answer ended, and when; it costs 5."""
    ledger = Ledger(database)
    for number, (key, tags, ended, created) in enumerate(rows):
        call = a_call(principal=Principal(key, "acme", tier="pro"), request_id=f"req_{number}")
        call.receipt.created = created.timestamp()
        call.tags = tags
        call.request = replace(call.request, params={"user": f"user of {key}"})
        one = Ended(call, a_bill(Usage(7, 3), 5), 200)
        one.is_metered, one.finish_reason = True, ended
        ledger.record(one)
    asyncio.run(ledger.aclose())


def counted(
    database: Database, *by: Group, interval: Interval | None = None, **equal: str
) -> dict[Any, tuple[int, int]]:
    """Requests and cost by group, or groups."""
    where = UsageFilter(*SPAN, tuple((name, equal[name]) for name in GROUPS if name in equal))
    names = [*(["start"] if interval else []), *by]
    rows = read_any_usage(database, where, by, interval)
    return {tuple(row[one] for one in names): (row["requests"], row["cost_nanodollars"]) for row in rows}


@pytest.fixture
def filled(database: Database) -> Database:
    record(
        database,
        ("a", ",red,", "stop", NOW),
        ("a", ",blue,red,", "length", NOW.replace(minute=59, second=59, microsecond=999_000)),
        ("b", "", "stop", NOW.replace(hour=13)),
        ("b", ",redder,", "stop", NOW.replace(month=2, day=28)),
    )
    return database


def test_a_request_counts_under_each_of_its_tags(filled: Database) -> None:
    assert counted(filled, "tag") == {
        ("red",): (2, 10),
        ("blue",): (1, 5),
        ("redder",): (1, 5),
        ("",): (1, 5),
    }
    assert counted(filled, "tag", tag="red") == {("red",): (2, 10)}
    assert counted(filled, "key", tag="red") == {("a",): (2, 10)}
    assert counted(filled, "tag", "key", tag="blue") == {("blue", "a"): (1, 5)}


def test_several_groups_and_filters(filled: Database) -> None:
    users = {name for (name,) in counted(filled, "user")}
    assert len(users) == 2 and not any("user of" in name for name in users)
    found = counted(filled, "user", "finish_reason")
    assert sorted(count for count, _ in found.values()) == [1, 1, 2]
    (one,) = [name for (name, why) in found if why == "length"]
    assert counted(filled, "finish_reason", user=one) == {("stop",): (1, 5), ("length",): (1, 5)}
    assert counted(filled, "experiment", "arm", "backend", "user_agent") == {("", "", "", ""): (4, 20)}
    assert counted(filled, finish_reason="stop") == {(): (3, 15)}
    assert counted(filled, finish_reason="never") == {}


@pytest.mark.parametrize("interval", ["hour", "day", "month"])
def test_intervals_are_those_of_the_sums(filled: Database, interval: Interval) -> None:
    rows = read_usage(filled, UsageFilter(*SPAN), (), interval)
    found: dict[int, int] = {}
    for (start, _), (requests, _) in counted(filled, "finish_reason", interval=interval).items():
        found[start] = found.get(start, 0) + requests
    assert found == {row["start"]: row["requests"] for row in rows}


def test_what_was_rolled_up_knows_no_details(filled: Database) -> None:
    assert roll_up(filled, NOW.timestamp()) == 1
    assert counted(filled, "tag")["(rolled up)",] == (1, 5)


def test_one_that_was_never_written(database: Database) -> None:
    assert read_any_usage(database, UsageFilter(*SPAN), ["user"]) == []
