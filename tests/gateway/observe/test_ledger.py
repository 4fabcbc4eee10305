"""A real SQLite file, written by one process or several."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.metering.bill import Bill, Charge
from gateway.observe import batch_writer
from gateway.observe import ledger as module
from gateway.observe.ledger import Ledger
from gateway.types import Principal, UpstreamUsage, Usage
from tests.fakes import CANDIDATE, TARGET, a_bill, a_call, within

pytestmark = pytest.mark.anyio


def rows(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("SELECT * FROM requests ORDER BY request_id")]


async def test_a_request_is_recorded_whole(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "deep" / "ledger.sqlite")
    principal = Principal("k", "acme", tier="pro")
    call = a_call(principal=principal, request_id="req_1", model="alias")
    call.candidate = CANDIDATE
    call.receipt.note("fallback", attempts=[{"failed": True}, {"failed": False}])
    used = Usage(10, 5, cached=4, reasoning=2, cache_write=3, cache_write_1h=1)
    ledger.record(call, a_bill(used, 1234, estimated=True), 200)
    ledger.record(a_call(request_id="req_2", stream=False), Bill(), 503, "queue_full")
    await ledger.aclose()
    first, second = rows(ledger.path)
    assert 0 <= first.pop("seconds") < 10
    assert first == {
        "request_id": "req_1",
        "created": 1_700_000_000.0,
        "tenant": "acme",
        "key_id": "k",
        "tier": "pro",
        "model": "alias",
        "answered_model": "m",
        "backend": "up",
        "target_model": "upstream-model",
        "status": 200,
        "stream": 1,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
        "reasoning_tokens": 2,
        "cost_nanodollars": 1234,
        "estimated": 1,
        "attempts": 2,
        "error": None,
        "cache_write_tokens": 3,
        "cache_write_1h_tokens": 1,
        "user_agent": "",
    }
    assert (second["status"], second["stream"], second["backend"], second["attempts"]) == (503, 0, None, 0)
    assert second["error"] == "queue_full"
    assert ledger.lost == 0


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


async def test_nobody_else_may_read_it(tmp_path: Path, no_umask: None) -> None:
    ledger = Ledger(tmp_path / "state" / "ledger.sqlite")
    ledger.record(a_call(), a_bill(Usage(0, 0)), 200)
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
        ledger = Ledger(path)
        ledger.record(a_call(), a_bill(Usage(0, 0)), 200)
        assert await asyncio.to_thread(ledger.wait_drained, 300)
        assert set(modes(tmp_path).values()) == {0o600}
        await ledger.aclose()
    assert len(rows(path)) == 1


async def test_what_our_own_queue_refused_was_not_asked(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    call = a_call()
    call.receipt.note("fallback", attempts=[{"admitted": False}, {"admitted": False}])
    ledger.record(call, Bill(), 503, "queue_full")
    await ledger.aclose()
    assert rows(ledger.path)[0]["attempts"] == 0


def made_older(database: sqlite3.Connection, version: int) -> None:
    """A ledger as gateways of an earlier version wrote it."""
    for name in ("requests", "spendings"):
        database.execute(f"DROP TRIGGER hours_of_{name}")
        database.execute(f"ALTER TABLE {name} DROP COLUMN user_agent")
    database.execute("DROP TABLE hours")
    if version < 4:
        database.execute("DROP VIEW spent")
        database.execute("DROP TABLE spendings")
    later = ["error", "cache_write_tokens", "cache_write_1h_tokens"]
    for column in {1: later, 2: later[1:]}.get(version, []):
        database.execute(f"ALTER TABLE requests DROP COLUMN {column}")
    database.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_a_file_of_an_older_version_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    path = tmp_path / "ledger.sqlite"
    before = Ledger(path)
    before.record(a_call(request_id="req_1"), a_bill(Usage(10, 5), 7), 200)
    await before.aclose()
    with closing(sqlite3.connect(path)) as database:
        made_older(database, version)
    ledger = Ledger(path)
    ledger.record(a_call(request_id="req_2"), a_bill(Usage(9, 0, cache_write=8)), 429, "rate_limit_exceeded")
    await ledger.aclose()
    found = [(row["cost_nanodollars"], row["error"], row["cache_write_tokens"]) for row in rows(path)]
    assert found == [
        (7, None, 0),
        (0, "rate_limit_exceeded", 8),
    ]
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT sum(requests), sum(cost_low) FROM hours").fetchone() == (2, 7)


async def test_the_hours_have_each_row_once_in_the_hour_of_its_request(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for number, created in enumerate((3599.9, 3600.0, 7199.0, 3600.0)):
        call = a_call(request_id=f"req_{min(number, 2)}", model="m")
        call.receipt.created, call.user_agent = created, "curl/8"
        ledger.record(call, a_bill(Usage(10, 5), 2**40 + number), 200)
    await ledger.aclose()
    with closing(sqlite3.connect(ledger.path)) as database:
        found = database.execute(
            "SELECT hour, user_agent, reason, requests, prompt_tokens, (cost_high << 32) + cost_low FROM hours"
        ).fetchall()
    assert found == [
        (0, "curl/8", "ok", 1, 10, 2**40),
        (3600, "curl/8", "ok", 2, 20, 2 * 2**40 + 3),
    ]


async def test_all_that_a_request_took_is_there_once_under_its_own_model(tmp_path: Path) -> None:
    step = Charge(UpstreamUsage(TARGET, Usage(3, 4), True, "step", "small"), 30)
    answer = Charge(UpstreamUsage(TARGET, Usage(5, 6), False, "answer", "m"), 500)
    judge = Charge(UpstreamUsage(TARGET, Usage(7, 8), False, "judge", "guard"), 7000)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    call = a_call(request_id="req_1", model="auto")
    call.candidate = CANDIDATE
    ledger.record(call, Bill((step, answer), 18, 530), 200)
    ledger.record(call, Bill((step, answer), 18, 530), 200)
    ledger.record_charges("req_1-shadow", 3.0, Principal("shadow", "house"), [judge])
    await ledger.aclose()
    with closing(sqlite3.connect(ledger.path)) as database:
        found = database.execute(
            "SELECT request_id, tenant, purpose, model, prompt_tokens, completion_tokens, cost_nanodollars, estimated "
            "FROM spent ORDER BY cost_nanodollars"
        ).fetchall()
    assert found == [
        ("req_1", "acme", "step", "small", 3, 4, 30, 1),
        ("req_1", "acme", "answer", "m", 5, 6, 500, 0),
        ("req_1-shadow", "house", "judge", "guard", 7, 8, 7000, 0),
    ]
    assert [row["cost_nanodollars"] for row in rows(ledger.path)] == [500]


async def test_what_brings_an_old_file_up_to_date_counts_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    before = Ledger(path)
    before.record(a_call(request_id="req_1"), a_bill(Usage(10, 5), 7), 200)
    await before.aclose()
    with closing(sqlite3.connect(path)) as database:
        made_older(database, 3)
    ledger = Ledger(path)
    ledger.record_charges("req_2", 3.0, Principal("k", "acme"), a_bill(Usage(1, 1), 5).charges)
    await ledger.aclose()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT sum(cost_nanodollars) FROM spent").fetchone() == (12,)


async def test_each_request_counts_once(tmp_path: Path) -> None:
    for cost in (1, 2):
        ledger = Ledger(tmp_path / "ledger.sqlite")
        for _ in range(2):
            ledger.record(a_call(request_id="req_1"), a_bill(Usage(0, 0), cost), 200)
        await ledger.aclose()
    assert [row["cost_nanodollars"] for row in rows(ledger.path)] == [1]


async def test_nothing_is_made_before_there_is_something_to_write(tmp_path: Path) -> None:
    await Ledger(tmp_path / "ledger.sqlite").aclose()
    assert os.listdir(tmp_path) == []


WRITER = """
import asyncio, sys
from pathlib import Path
from gateway.observe.ledger import Ledger
from gateway.types import Usage
from tests.fakes import a_bill, a_call
ledger = Ledger(Path(sys.argv[1]))
for n in range(500):
    ledger.record(a_call(request_id=f"{sys.argv[2]}-{n}"), a_bill(Usage(0, 0), 1), 200)
asyncio.run(ledger.aclose())
sys.exit(ledger.lost)
"""


def test_several_processes_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    root = Path(__file__).parents[3]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], cwd=root)
        for name in ("a", "b", "c")
    ]
    assert [writer.wait(300) for writer in writers] == [0, 0, 0]
    assert len(rows(path)) == 1500


async def test_a_broken_disk_breaks_nothing_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.02)
    path = tmp_path / "ledger.sqlite"
    path.mkdir()  # no file can be opened here
    ledger = Ledger(path)
    ledger.record(a_call(request_id="req_1"), a_bill(Usage(0, 0), 1), 200)
    assert not ledger.wait_drained(0.3)
    assert "cannot be written" in caplog.text
    path.rmdir()
    assert ledger.wait_drained(3)
    ledger.record(a_call(request_id="req_2"), a_bill(Usage(0, 0), 1), 200)
    await ledger.aclose()
    assert len(rows(path)) == 2 and ledger.lost == 0
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


async def test_a_file_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.record(a_call(request_id="req_1"), a_bill(Usage(0, 0), 1), 200)
    assert ledger.wait_drained(3)
    for file in os.listdir(tmp_path):
        (tmp_path / file).unlink()
    ledger.record(a_call(request_id="req_2"), a_bill(Usage(0, 0), 1), 200)
    await ledger.aclose()
    assert [row["request_id"] for row in rows(ledger.path)] == ["req_2"]


async def test_a_disk_that_stays_broken_bounds_the_backlog_and_the_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_writer, "BACKLOG", 20)
    monkeypatch.setattr(batch_writer, "SECONDS_TO_CLOSE", 0.2)
    path = tmp_path / "ledger.sqlite"
    path.mkdir()
    ledger = Ledger(path)
    for n in range(30):
        ledger.record(a_call(request_id=f"req_{n}"), a_bill(Usage(0, 0), 1), 200)
    assert ledger.lost == 10
    async with within(2):
        await ledger.aclose()
    assert ledger.lost == 30
    assert "30 requests are missing" in caplog.text


async def test_a_row_that_cannot_be_written_does_not_hold_up_the_others(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for n in range(3):
        ledger.record(a_call(request_id=f"req_{n}"), a_bill(Usage(10**30 if n == 1 else 1, 1), 1), 200)
    await ledger.aclose()
    assert [row["request_id"] for row in rows(ledger.path)] == ["req_0", "req_2"]
    assert ledger.lost == 1


async def test_a_newer_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_writer, "SECONDS_TO_CLOSE", 0.2)
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
    ledger = Ledger(path)
    ledger.record(a_call(), a_bill(Usage(0, 0), 1), 200)
    await ledger.aclose()
    assert ledger.lost == 1
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_recording_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    call = a_call()
    ledger.record(call, a_bill(Usage(0, 0), 0), 200)
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
        ledger.wait_drained(3)
        other.execute("BEGIN EXCLUSIVE")
        # Comes back at all: the disk is free no sooner than below.
        for _ in range(1000):
            ledger.record(call, a_bill(Usage(0, 0), 0), 200)
        other.execute("ROLLBACK")
    assert ledger.wait_drained(5)
