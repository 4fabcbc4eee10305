"""What is the file's own: its modes, its versions, its disk."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest

from gateway.databases.database import DatabaseError
from gateway.databases.sqlite import SqliteDatabase
from gateway.databases.sqlite_schema import TO_THIS
from gateway.databases.tables import HAPPENED
from gateway.observe import batch_writer
from gateway.observe.ended import Ended
from gateway.observe.ledger import ledger as module
from gateway.observe.ledger.end_users import EndUsers
from gateway.observe.ledger.ledger import Ledger
from gateway.private import take_from_others
from gateway.types import Principal, Usage
from tests.fakes import a_bill, a_call, within
from tests.ledgers import rows, sums

pytestmark = pytest.mark.anyio


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


async def test_nobody_else_may_read_it(tmp_path: Path, no_umask: None) -> None:
    ledger = Ledger(SqliteDatabase(tmp_path / "state" / "ledger.sqlite"))
    ledger.record(Ended(a_call(), a_bill(Usage(0, 0)), 200))
    assert await asyncio.to_thread(ledger.wait_drained, 300)
    files = dict.fromkeys(("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"), 0o600)
    assert modes(tmp_path / "state") == files
    assert modes(tmp_path) == {"state": 0o700}
    await ledger.aclose()


async def test_one_that_others_may_read_is_closed_to_them(tmp_path: Path, no_umask: None) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as open_elsewhere:
        open_elsewhere.execute("PRAGMA journal_mode = WAL")
        open_elsewhere.execute("CREATE TABLE other (x)")
        open_elsewhere.commit()
        assert modes(tmp_path) == dict.fromkeys(
            ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"), 0o644
        )
        ledger = Ledger(SqliteDatabase(path))
        ledger.record(Ended(a_call(), a_bill(Usage(0, 0)), 200))
        assert await asyncio.to_thread(ledger.wait_drained, 300)
        assert set(modes(tmp_path).values()) == {0o600}
        await ledger.aclose()
    assert len(rows(SqliteDatabase(path))) == 1


def made_older(database: sqlite3.Connection, version: int) -> None:
    """A ledger as gateways of an earlier version wrote it."""
    database.execute("DROP INDEX requests_by_experiment")
    if version == 8:
        database.execute("ALTER TABLE requests DROP COLUMN assignee")
        database.execute(f"PRAGMA user_version = {version}")
        return
    database.execute("DROP TABLE salts")
    for name in HAPPENED:
        database.execute(f"ALTER TABLE requests DROP COLUMN {name}")
    if version == 7:
        database.execute(f"PRAGMA user_version = {version}")
        return
    for name in ("requests", "spendings"):
        database.execute(f"ALTER TABLE {name} DROP COLUMN unit")
        database.execute(f"ALTER TABLE {name} DROP COLUMN units")
    if version == 6:
        database.execute(f"PRAGMA user_version = {version}")
        return
    database.execute("DROP TABLE days")
    database.execute("DROP TABLE months")
    if version == 5:
        database.execute("ALTER TABLE hours RENAME COLUMN start TO hour")
        for name in ("requests", "spendings"):
            trigger = f"CREATE TRIGGER hours_of_{name} AFTER INSERT ON {name} BEGIN DELETE FROM hours; END"
            database.execute(trigger)
    else:
        for name in ("requests", "spendings"):
            database.execute(f"ALTER TABLE {name} DROP COLUMN user_agent")
        database.execute("DROP TABLE hours")
    if version < 4:
        database.execute("DROP VIEW spent")
        database.execute("DROP TABLE spendings")
    later = ["error", "cache_write_tokens", "cache_write_1h_tokens"]
    for column in {1: later, 2: later[1:]}.get(version, []):
        database.execute(f"ALTER TABLE requests DROP COLUMN {column}")
    database.execute(f"PRAGMA user_version = {version}")


OF_0_2_0 = """
CREATE TABLE requests (request_id TEXT PRIMARY KEY, created REAL NOT NULL, tenant TEXT NOT NULL, key_id TEXT NOT NULL,
    tier TEXT NOT NULL, model TEXT NOT NULL, answered_model TEXT, backend TEXT, target_model TEXT,
    status INTEGER NOT NULL,
    stream INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL, cost_nanodollars INTEGER NOT NULL,
    estimated INTEGER NOT NULL, seconds REAL NOT NULL, attempts INTEGER NOT NULL, error TEXT,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0, cache_write_1h_tokens INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE INDEX requests_by_time ON requests (created);
CREATE INDEX requests_by_tenant ON requests (tenant, created);
INSERT INTO requests VALUES ('req_1', 1760000000.0, 'acme', 'k', 'pro', 'm', 'm', 'up', 'x', 200, 1, 10, 0, 5, 0, 7, 0,
    1.5, 1, NULL, 0, 0);
PRAGMA user_version = 3;
"""
"""A file that Tollgate 0.2.0 wrote."""


async def test_a_file_of_0_2_0_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(OF_0_2_0)
    ledger = Ledger(SqliteDatabase(path))
    call = a_call(request_id="req_2", params={"user": "somebody@example.com"})
    call.tags = ",nightly,"
    call.receipt.note("experiment", name="new-model", arm="b")
    ledger.record(Ended(call, a_bill(Usage(9, 4), 3)))
    await ledger.aclose()
    old, new = rows(ledger.database)
    assert (old["prompt_tokens"], old["cost_nanodollars"], old["units"]) == (10, 7, 0.0)
    assert [old[name] for name in HAPPENED] == [None, None, "", 0, 0, "", "", "", "", None, ""]
    assert (new["tags"], new["experiment"], new["arm"]) == (",nightly,", "new-model", "b")
    assert len(new["end_user"]) == 16 and "somebody" not in new["end_user"]
    found = sums(ledger.database, "days").values()
    assert [sum(column) for column in zip(*found, strict=True)] == [2, 19, 10]


async def test_who_waited_for_anothers_migration_writes_to_the_tables_as_they_are_now(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.executescript(OF_0_2_0)
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("BEGIN IMMEDIATE")
        ledger = Ledger(SqliteDatabase(path))
        ledger.record(Ended(a_call(request_id="req_2"), a_bill(Usage(9, 4), 3)))
        await asyncio.sleep(0.5)  # for its writer to come to the lock; where it does not, it finds all done
        for statement in TO_THIS[3].split(";"):
            other.execute(statement)
        other.execute(f"PRAGMA user_version = {len(TO_THIS)}")
        other.execute("COMMIT")
    assert await asyncio.to_thread(ledger.wait_drained, 300.0)
    await ledger.aclose()
    assert [row["request_id"] for row in rows(ledger.database)] == ["req_1", "req_2"]


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6, 7, 8])
async def test_a_file_of_an_older_version_is_brought_up_to_date(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "ledger.sqlite"
    before = Ledger(SqliteDatabase(path))
    before.record(Ended(a_call(request_id="req_1"), a_bill(Usage(10, 5), 7)))
    await before.aclose()
    with closing(sqlite3.connect(path)) as database:
        made_older(database, version)
    assert "migrated" not in caplog.text, "a new file is not"
    ledger = Ledger(SqliteDatabase(path))
    ledger.record(
        Ended(a_call(request_id="req_2"), a_bill(Usage(9, 0, cache_write=8)), 429, "rate_limit_exceeded")
    )
    await ledger.aclose()
    found = [
        (row["cost_nanodollars"], row["error"], row["cache_write_tokens"])
        for row in rows(SqliteDatabase(path))
    ]
    assert found == [
        (7, None, 0),
        (0, "rate_limit_exceeded", 8),
    ]
    (told,) = (line for line in caplog.messages if "migrated" in line)
    assert f"{path}: its tables were migrated from version {version} to" in told
    for table in ("hours", "days"):
        found = sums(ledger.database, table).values()
        assert [sum(column) for column in zip(*found, strict=True)] == [2, 19, 7]


async def test_what_brings_an_old_file_up_to_date_counts_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    before = Ledger(SqliteDatabase(path))
    before.record(Ended(a_call(request_id="req_1"), a_bill(Usage(10, 5), 7)))
    await before.aclose()
    with closing(sqlite3.connect(path)) as database:
        made_older(database, 3)
    ledger = Ledger(SqliteDatabase(path))
    ledger.record_charges("req_2", 3.0, Principal("k", "acme"), a_bill(Usage(1, 1), 5).charges)
    await ledger.aclose()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT sum(cost_nanodollars) FROM spent").fetchone() == (12,)


async def test_nothing_is_made_before_there_is_something_to_write(tmp_path: Path) -> None:
    await Ledger(SqliteDatabase(tmp_path / "ledger.sqlite")).aclose()
    assert os.listdir(tmp_path) == []


async def test_a_broken_disk_breaks_nothing_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.02)
    path = tmp_path / "ledger.sqlite"
    path.mkdir()  # no file can be opened here
    ledger = Ledger(SqliteDatabase(path))
    ledger.record(Ended(a_call(request_id="req_1"), a_bill(Usage(0, 0), 1), 200))
    assert not ledger.wait_drained(0.3)
    assert "cannot be written" in caplog.text
    path.rmdir()
    assert ledger.wait_drained(3)
    ledger.record(Ended(a_call(request_id="req_2"), a_bill(Usage(0, 0), 1), 200))
    await ledger.aclose()
    assert len(rows(SqliteDatabase(path))) == 2 and ledger.lost == 0
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


async def test_a_file_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    ledger = Ledger(SqliteDatabase(tmp_path / "ledger.sqlite"))
    ledger.record(Ended(a_call(request_id="req_1"), a_bill(Usage(0, 0), 1), 200))
    assert ledger.wait_drained(3)
    for file in os.listdir(tmp_path):
        (tmp_path / file).unlink()
    ledger.record(Ended(a_call(request_id="req_2"), a_bill(Usage(0, 0), 1), 200))
    await ledger.aclose()
    assert [row["request_id"] for row in rows(ledger.database)] == ["req_2"]


async def test_a_newer_file_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_writer, "SECONDS_TO_CLOSE", 0.2)
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
    ledger = Ledger(SqliteDatabase(path))
    ledger.record(Ended(a_call(), a_bill(Usage(0, 0), 1), 200))
    await ledger.aclose()
    assert ledger.lost == 1
    assert "version 99" in caplog.text and "a later Tollgate" in caplog.text
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_recording_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    ledger = Ledger(SqliteDatabase(tmp_path / "ledger.sqlite"))
    call = a_call()
    ledger.record(Ended(call, a_bill(Usage(0, 0), 0), 200))
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as other:
        ledger.wait_drained(3)
        other.execute("BEGIN EXCLUSIVE")
        # Comes back at all: the disk is free no sooner than below.
        for _ in range(1000):
            ledger.record(Ended(call, a_bill(Usage(0, 0), 0), 200))
        other.execute("ROLLBACK")
    assert ledger.wait_drained(5)


async def test_a_disk_that_stays_broken_bounds_the_backlog_and_the_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_writer, "BACKLOG", 20)
    monkeypatch.setattr(batch_writer, "SECONDS_TO_CLOSE", 0.2)
    path = tmp_path / "ledger.sqlite"
    path.mkdir()
    ledger = Ledger(SqliteDatabase(path))
    for n in range(30):
        ledger.record(Ended(a_call(request_id=f"req_{n}"), a_bill(Usage(0, 0), 1), 200))
    assert ledger.lost == 10
    async with within(2):
        await ledger.aclose()
    assert ledger.lost == 30
    assert "30 requests are missing" in caplog.text


def test_files_that_the_last_connection_removes_may_go_while_another_opens(tmp_path: Path) -> None:
    """-wal and -shm, which any opening looks at: one of 600 uploads beside others failed by that."""
    database, chance = SqliteDatabase(tmp_path / "ledger.sqlite"), Random(1)

    def change() -> None:
        for _ in range(500):
            time.sleep(chance.random() * 0.008)
            with database.changing() as changing:
                changing.run("DELETE FROM requests", {})

    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(change) for _ in range(3)]:
            done.result()


def test_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    take_from_others(tmp_path / "ledger.sqlite-wal")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "open").touch(mode=0o644)
    take_from_others(tmp_path / "open")
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o600


@contextmanager
def a_folder_to_read_alone(at: Path, mode: int = 0o444) -> Iterator[None]:
    """Nothing in it can be written: by nobody, where the tests run as root."""
    for file in at.iterdir():
        file.chmod(mode)
    at.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        at.chmod(0o755)


@pytest.fixture
def kept() -> Iterator[Path]:
    """A ledger's file, where everybody can get at it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with closing(sqlite3.connect(folder / "ledger.sqlite")) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE numbers AS SELECT 42 AS number")
            connection.commit()
        yield folder / "ledger.sqlite"


def _numbers(path: Path) -> list[int]:
    with SqliteDatabase(path).reading() as reader:
        return [row["number"] for row in reader.rows("SELECT number FROM numbers", {})]


def test_one_that_cannot_be_written_is_read(kept: Path) -> None:
    with a_folder_to_read_alone(kept.parent):
        assert _numbers(kept) == [42]
        assert [file.name for file in kept.parent.iterdir()] == [kept.name]
    with closing(sqlite3.connect(kept)) as writer:
        writer.execute("INSERT INTO numbers VALUES (43)")
        writer.commit()
        with a_folder_to_read_alone(kept.parent):
            assert _numbers(kept) == [42, 43], "another user's gateway serves on it"


def test_what_cannot_be_read_says_what_to_do(kept: Path) -> None:
    with closing(sqlite3.connect(kept)) as writer:
        writer.execute("INSERT INTO numbers VALUES (43)")
        writer.commit()
        copy = kept.parent / "copy"
        copy.mkdir()
        for end in ("", "-wal"):
            shutil.copy(f"{kept}{end}", copy / f"{kept.name}{end}")
    with a_folder_to_read_alone(copy), pytest.raises(DatabaseError, match="copy both files into a folder"):
        _numbers(copy / kept.name)
    with a_folder_to_read_alone(copy, 0), pytest.raises(DatabaseError, match="run this as its owner"):
        _numbers(copy / kept.name)


def test_sums_of_a_batch_beyond_63_bits_are_added_as_sqlite_itself_would(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "ledger.sqlite")
    writer = database.writer()
    batch = []
    for number in range(3):
        call = a_call(request_id=f"req_{number}")
        call.receipt.created = 7_200.0
        batch += module._rows(Ended(call, a_bill(Usage(2**62, 1), 2**62), 200), EndUsers(database))
    writer.insert(batch, [])
    writer.close()
    assert sums(database) == {(7_200, "ok"): (3, 3 * 2**62, 3 * 2**62)}
