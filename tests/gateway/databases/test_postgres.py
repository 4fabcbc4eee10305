"""What is the server's own: it goes away and crashes, its schema is made by several at once, its password is secret."""

from __future__ import annotations

import asyncio
import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.databases.database import DatabaseError
from gateway.databases.migrations import Migrations
from gateway.databases.opening import open_database
from gateway.databases.postgres import PostgresDatabase, address
from gateway.databases.postgres_schema import MIGRATIONS, VERSION
from gateway.databases.tables import HAPPENED, REQUESTS, Row
from gateway.observe import batch_writer
from gateway.observe.ended import Ended
from gateway.observe.ledger import ledger as module
from gateway.observe.ledger.ledger import Ledger
from gateway.policy.schema import LedgerSettings
from gateway.types import Usage
from tests.fakes import a_bill, a_call, within
from tests.ledgers import rows, sums
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def empty(postgres_server: PostgresServer) -> PostgresDatabase:
    return PostgresDatabase(postgres_server.url(postgres_server.new_database()))


def record(ledger: Ledger, *names: str) -> None:
    for name in names:
        ledger.record(Ended(a_call(request_id=name), a_bill(Usage(1, 1), 5), 200))


def a_row(name: str) -> Row:
    of_kind = {"text": "x", "boolean": False, "integer": 0, "real": 0.0}
    given = {column: of_kind[kind] for column, kind in REQUESTS.items()}
    return tuple({**given, "request_id": name, "error": None}.values())


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_tables_of_an_older_version_are_brought_up_to_date(
    empty: PostgresDatabase, postgres_server: PostgresServer, version: int
) -> None:
    steps = Migrations("ledger", MIGRATIONS[:version], snapshot=True)
    old = PostgresDatabase(empty._url, tables=steps)
    columns = ", ".join(name for name in REQUESTS if name not in (*HAPPENED, "unit", "units"))
    values = {"text": "'x'", "boolean": "false", "integer": "0", "real": "0.0"}
    old_row = ", ".join(values[REQUESTS[name]] for name in columns.split(", "))
    with old.changing() as change:
        change.run(f"INSERT INTO requests ({columns}) VALUES ({old_row})", {})
    ledger = Ledger(empty)
    record(ledger, "new")
    await ledger.aclose()
    new, first = rows(empty)
    assert (first["request_id"], first["first_token"], first["finish_reason"], first["score"]) == (
        "x",
        None,
        "",
        None,
    )
    assert (new["request_id"], new["model_refused"]) == ("new", False)
    assert rows(empty, "SELECT version FROM ledger_version") == [{"version": VERSION}]


def test_replicas_that_start_together_make_the_tables_once(empty: PostgresDatabase) -> None:
    def first_row(number: int) -> None:
        writer = empty.writer()
        writer.insert([a_row(f"req_{number}")], [])
        writer.close()

    with ThreadPoolExecutor(8) as replicas:
        list(replicas.map(first_row, range(8)))
    assert len(rows(empty)) == 8
    assert rows(empty, "SELECT version FROM ledger_version") == [{"version": VERSION}]


async def test_a_newer_one_is_left_alone(
    empty: PostgresDatabase, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    writer = empty.writer()
    writer.insert([], [])
    writer.close()
    name = str(empty).rpartition("/")[2]
    postgres_server.execute(name, "UPDATE tollgate.ledger_version SET version = 99")
    ledger = Ledger(empty)
    record(ledger, "req_1")
    assert not await asyncio.to_thread(ledger.wait_drained, 0.2)
    assert "version 99" in caplog.text and "upgrading.md" in caplog.text
    assert postgres_server.execute(name, "SELECT * FROM tollgate.requests") == []
    postgres_server.execute(name, f"UPDATE tollgate.ledger_version SET version = {VERSION}")
    await ledger.aclose()


async def test_what_comes_while_the_server_is_away_waits_and_counts_once(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "RETRY", 0.05)
    database = PostgresDatabase(own_postgres.url(own_postgres.new_database()))
    ledger = Ledger(database)
    record(ledger, "req_1")
    assert await asyncio.to_thread(ledger.wait_drained, 300)
    own_postgres.stop(signal.SIGQUIT)  # a crash
    async with within(5):
        record(ledger, "req_1", "req_2", "req_3")  # comes back: nobody waits for the server
    assert not await asyncio.to_thread(ledger.wait_drained, 0.2)
    own_postgres.start()
    assert await asyncio.to_thread(ledger.wait_drained, 300)
    await ledger.aclose()
    assert ledger.lost == 0 and len(rows(database)) == 3
    assert [figures[0] for figures in sums(database).values()] == [3]
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 1
    assert "can be written again: 3 requests that waited" in caplog.text


async def test_one_that_stays_away_bounds_the_backlog_and_the_close(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_writer, "BACKLOG", 20)
    monkeypatch.setattr(batch_writer, "SECONDS_TO_CLOSE", 0.2)
    own_postgres.stop()
    ledger = Ledger(PostgresDatabase(own_postgres.url("postgres")))
    record(ledger, *(f"req_{number}" for number in range(30)))
    assert ledger.lost == 10
    await ledger.aclose()
    assert ledger.lost == 30 and "30 requests are missing" in caplog.text


def test_a_crash_in_the_middle_of_a_batch_leaves_all_of_it_or_nothing(empty: PostgresDatabase) -> None:
    writer = empty.writer()
    writer.insert([a_row("req_0")], [])
    with empty.changing() as change:
        # Rows go in, and the sums cannot: as if the session had ended between the two.
        change.run("ALTER TABLE days ADD CONSTRAINT full_disk CHECK (requests < 2)", {})
    with pytest.raises(DatabaseError):
        writer.insert([a_row("req_1")], [])
    assert [row["request_id"] for row in rows(empty)] == ["req_0"]
    assert [figures[0] for figures in sums(empty).values()] == [1]
    with empty.changing() as change:
        change.run("ALTER TABLE days DROP CONSTRAINT full_disk", {})
    writer.insert([a_row("req_0"), a_row("req_1")], [])
    writer.close()
    assert [figures[0] for figures in sums(empty).values()] == [2]
    assert [figures[0] for figures in sums(empty, "days").values()] == [2]


def test_a_session_that_the_server_ended_is_opened_anew(
    empty: PostgresDatabase, postgres_server: PostgresServer
) -> None:
    writer = empty.writer()
    writer.insert([a_row("req_0")], [])
    name = str(empty).rpartition("/")[2]
    postgres_server.execute(
        "postgres", f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    )
    with pytest.raises(DatabaseError):
        writer.insert([a_row("req_1")], [])
    writer.insert([a_row("req_1")], [])
    writer.close()
    assert len(rows(empty)) == 2


SECRET = "pw-do-not-tell"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://tollgate:{SECRET}@127.0.0.1:1/x",
        f"postgresql://tollgate@127.0.0.1:1/x?password={SECRET}",
        f"postgresql://tollgate:{SECRET}@127.0.0.1:1/x?nonsense={SECRET}",
        f"postgresql://tollgate:{SECRET}%zz@127.0.0.1:1/x",
    ],
)
async def test_the_password_is_told_to_nobody(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_writer, "SECONDS_TO_CLOSE", 0.2)
    database = PostgresDatabase(url)
    ledger = Ledger(database)
    record(ledger, "req_1")
    await ledger.aclose()
    with pytest.raises(DatabaseError) as raised:
        rows(database)
    assert "cannot be written" in caplog.text
    assert SECRET not in caplog.text + str(raised.value) + str(database) + address(url)


def test_the_password_is_read_from_its_file_for_each_connection(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    name = postgres_server.new_database()
    file = tmp_path / "password"
    config = LedgerSettings(store=postgres_server.tcp_url(name), password_file=str(file))
    database = open_database(config, tmp_path)
    with pytest.raises(DatabaseError, match="password_file"):
        rows(database, "SELECT 1 AS one")
    file.write_text("anything\n")  # the server trusts whoever comes from this machine
    assert rows(database, "SELECT 1 AS one") == [{"one": 1}]
