from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.databases.database import Database, DatabaseError
from gateway.databases.sqlite import SqliteDatabase
from gateway.metering.window_usage import WindowUsage
from gateway.observe.ended import Ended
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.ledger.usage_query import read_window_usage
from gateway.types import Principal, Usage
from tests.fakes import a_bill, a_call

NOW = datetime(2027, 3, 10, 12, tzinfo=UTC)


def record(database: Database, *rows: tuple[str, datetime, int]) -> None:
    """Each: a key of tenant ``acme``, when, and nano-dollars."""
    ledger = Ledger(database)
    for number, (key, created, cost) in enumerate(rows):
        call = a_call(principal=Principal(key, "acme", tier="pro"), request_id=f"req_{number}")
        call.receipt.created = created.timestamp()
        ledger.record(Ended(call, a_bill(Usage(7, 3), cost), 200))
    asyncio.run(ledger.aclose())


def test_days_and_months_of_each_caller(database: Database) -> None:
    record(
        database,
        ("a", NOW, 5),
        ("a", NOW.replace(hour=0), 6),
        ("a", NOW.replace(day=9, hour=23, minute=59), 70),
        ("b", NOW.replace(day=1, hour=0), 8),
        ("b", NOW.replace(month=2, day=28), 900),
    )
    assert sorted(read_window_usage(database, NOW.timestamp())) == [
        WindowUsage("acme", "a", "pro", "day", 20, 11),
        WindowUsage("acme", "a", "pro", "month", 30, 81),
        WindowUsage("acme", "b", "pro", "month", 10, 8),
    ]


def test_what_an_older_gateway_believed_does_not_overflow(database: Database) -> None:
    record(database, *[("a", NOW, 2**62)] * 3)
    assert read_window_usage(database, NOW.timestamp())[0].nanodollars == 3 * 2**62


def test_one_that_was_never_written(database: Database) -> None:
    assert read_window_usage(database, NOW.timestamp()) == []


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("This is a text, and long enough to be taken for a database's first page.")
    with pytest.raises(DatabaseError):
        read_window_usage(SqliteDatabase(tmp_path / "text"), NOW.timestamp())
