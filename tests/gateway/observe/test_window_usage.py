from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.metering.window_usage import WindowUsage
from gateway.observe.ledger import Ledger
from gateway.observe.window_usage import read_window_usage
from gateway.types import Principal, Usage
from tests.fakes import a_bill, a_call

NOW = datetime(2027, 3, 10, 12, tzinfo=UTC)


def record(path: Path, *rows: tuple[str, datetime, int]) -> None:
    """Each: a key of tenant ``acme``, when, and nano-dollars."""
    ledger = Ledger(path)
    for number, (key, created, cost) in enumerate(rows):
        call = a_call(principal=Principal(key, "acme", tier="pro"), request_id=f"req_{number}")
        call.receipt.created = created.timestamp()
        ledger.record(call, a_bill(Usage(7, 3), cost), 200)
    asyncio.run(ledger.aclose())


def test_days_and_months_of_each_caller(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    record(
        path,
        ("a", NOW, 5),
        ("a", NOW.replace(hour=0), 6),
        ("a", NOW.replace(day=9, hour=23, minute=59), 70),
        ("b", NOW.replace(day=1, hour=0), 8),
        ("b", NOW.replace(month=2, day=28), 900),
    )
    assert sorted(read_window_usage(path, NOW.timestamp())) == [
        WindowUsage("acme", "a", "pro", "day", 20, 11),
        WindowUsage("acme", "a", "pro", "month", 30, 81),
        WindowUsage("acme", "b", "pro", "month", 10, 8),
    ]


def test_what_an_older_gateway_believed_does_not_overflow(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    record(path, *[("a", NOW, 2**62)] * 3)
    assert read_window_usage(path, NOW.timestamp())[0].nanodollars == 3 * 2**62


def test_a_ledger_that_is_not_there_or_none(tmp_path: Path) -> None:
    assert read_window_usage(tmp_path / "none", NOW.timestamp()) == []
    (tmp_path / "text").write_text("This is a text, and long enough to be taken for a database's first page.")
    with pytest.raises(sqlite3.Error):
        read_window_usage(tmp_path / "text", NOW.timestamp())
