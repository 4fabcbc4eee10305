"""A search looks at so many requests, and says where to go on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.databases.database import Database
from gateway.databases.sqlite import SqliteDatabase
from gateway.observe.ended import Ended
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.ledger.request_search import RequestFilter, find_requests
from gateway.types import Principal
from tests.fakes import a_call
from tests.ledgers import rows

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ledger(tmp_path: Path) -> Database:
    """Ten requests, of which the eldest alone was refused for its budget; all at one moment."""
    path = tmp_path / "ledger.sqlite"
    database = SqliteDatabase(path)
    ledger = Ledger(database)
    for number in range(10):
        who = Principal("k", "even" if number % 2 == 0 else "odd")
        ledger.record_refusal(f"req_{number}", who, 429, "budget" if number == 0 else "quota")
    await ledger.aclose()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE requests SET created = 1000.5")
    return database


def pages(database: Database, where: RequestFilter, limit: int, scan: int) -> list[list[str]]:
    """What each search finds, one after the other."""
    found, after = [], None
    while True:
        page = find_requests(database, where, limit=limit, after=after, scan=scan)
        found.append([row["request_id"] for row in page.rows])
        assert page.searched_to is None or (page.next is not None and page.next[0] == page.searched_to)
        if page.next is None:
            return found
        after = page.next


@pytest.mark.parametrize("scan", [1, 3, 4, 10, 11])
@pytest.mark.parametrize("limit", [1, 2, 10])
@pytest.mark.parametrize("tenant", [None, "even"])
@pytest.mark.parametrize("error", [None, "budget", "quota", "nosuch"])
async def test_going_on_finds_each_once(
    ledger: Database, scan: int, limit: int, tenant: str | None, error: str | None
) -> None:
    expected = [
        f"req_{number}"
        for number in reversed(range(10))
        if (tenant is None or number % 2 == 0) and (error is None or (error == "budget") == (number == 0))
    ]
    found = pages(ledger, RequestFilter(tenant=tenant, error=error), limit, scan)
    assert [one for page in found for one in page] == ([] if error == "nosuch" else expected)
    assert all(len(page) <= limit for page in found)


async def test_a_search_reads_no_more_than_it_may(ledger: Database) -> None:
    where = RequestFilter(error="budget")
    first = find_requests(ledger, where, limit=5, scan=4)
    assert first.rows == [] and first.next == (1000.5, "req_6") and first.searched_to == 1000.5
    assert find_requests(ledger, RequestFilter(), limit=5, scan=4).searched_to is None, "no filter, no scan"


async def test_by_what_happened(database: Database) -> None:
    ledger = Ledger(database)
    asked = [("bob", ",a,", "stop"), ("bob", ",a,b_c,", "length"), ("eve", "", "stop")]
    for number, (user, tags, finish) in enumerate(asked):
        call = a_call(request_id=f"req_{number}", params={"user": user})
        call.tags = tags
        ended = Ended(call)
        ended.finish_reason = finish
        ledger.record(ended)
    await ledger.aclose()
    user = next(row["end_user"] for row in rows(database))

    def found(**where: str) -> list[str]:
        page = find_requests(database, RequestFilter(**where), limit=9)  # type: ignore[arg-type]
        return sorted(row["request_id"] for row in page.rows)

    assert found(user=user) == ["req_0", "req_1"]
    assert found(tag="a") == ["req_0", "req_1"] and found(tag="b_c") == ["req_1"] and found(tag="bXc") == []
    assert found(tag="a", finish_reason="stop") == ["req_0"]
