"""``tollgate usage`` by several groups, of one tenant, as CSV."""

from __future__ import annotations

import csv
import io
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.databases.sqlite import SqliteDatabase
from gateway.databases.tables import HAPPENED


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    path = tmp_path / "ledger.sqlite"
    writer = SqliteDatabase(path).writer()
    writer.insert([], [])
    writer.close()
    asked = [
        ("acme", "m", "one", 5),
        ("acme", "m", "two", 7),
        ("acme", "n", "one", 1),
        ("other", "m", "one", 2),
    ]
    with closing(sqlite3.connect(path)) as database:
        needed = [
            row[1:3] for row in database.execute("PRAGMA table_info(requests)") if row[3] and row[4] is None
        ]
        for number, (tenant, model, backend, cost) in enumerate(asked):
            row: dict[str, object] = {
                name: 0 if kind in ("INTEGER", "REAL") else "x" for name, kind in needed
            }
            row |= {"request_id": f"req_{number}", "created": time.time(), "tenant": tenant, "model": model}
            row |= {"backend": backend, "status": 200, "cost_nanodollars": cost * 10**9}
            marks = ", ".join("?" * len(row))
            database.execute(f"INSERT INTO requests ({', '.join(row)}) VALUES ({marks})", [*row.values()])
        database.commit()
    return str(path)


def lines(capsys: pytest.CaptureFixture[str], ledger: str, *arguments: str) -> list[dict[str, str]]:
    assert main(["usage", "--ledger", ledger, "--csv", *arguments]) == 0
    return [*csv.DictReader(io.StringIO(capsys.readouterr().out))]


def test_by_backend(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, ledger, "--by", "backend")
    assert [(row["backend"], row["requests"], float(row["usd"])) for row in found] == [
        ("one", "3", 8),
        ("two", "1", 7),
    ]


def test_by_several_and_of_one_tenant(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, ledger, "--by", "tenant,model")
    assert [(row["tenant"], row["model"], float(row["usd"])) for row in found] == [
        ("acme", "m", 12),
        ("other", "m", 2),
        ("acme", "n", 1),
    ]
    assert [row["backend"] for row in lines(capsys, ledger, "--by", "backend", "--tenant", "other")] == [
        "one"
    ]
    assert lines(capsys, ledger, "--by", "tenant", "model") == found
    assert lines(capsys, ledger, "--by", "tenant", "--by", "model") == found
    assert main(["usage", "--ledger", ledger, "--by", "tenant,model"]) == 0
    heading, *_, total = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["TENANT", "MODEL", "REQUESTS"] and total.split()[:2] == ["total", "4"]


def test_an_unknown_group_is_named(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["usage", "--ledger", ledger, "--by", "tenant,colour"])
    assert "'colour'" in capsys.readouterr().err


def test_no_cell_is_a_formula(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(ledger)) as database:
        for number, name in enumerate(FORMULAS):
            database.execute(
                "UPDATE requests SET tenant = ?, model = ?, key_id = ? WHERE request_id = ?",
                (name, name, name, f"req_{number}"),
            )
        database.commit()
    for by in ("tenant,model", "key,model"):
        found = lines(capsys, ledger, "--by", by)
        assert {row["model"] for row in found} == {f"'{name}" for name in FORMULAS}
        assert all(row[name][0] == "'" for row in found for name in by.split(",") if name != "key")
        assert all(float(row["usd"]) > 0 for row in found), "figures stay figures"


FORMULAS = ("=HYPERLINK(1)", "+1", "-1", "@SUM(A1)")


def test_a_tenant_without_requests_is_named(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--ledger", ledger, "--tenant", "nobody"]) == 0
    assert "No requests of tenant 'nobody'" in capsys.readouterr().out


def test_by_what_happened(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    happened = [
        ("0", "u1", ",nightly,web,", "stop"),
        ("1", "u2", ",web,", "length"),
        ("2", "u1", "", "stop"),
    ]
    with closing(sqlite3.connect(ledger)) as database:
        for number, user, tags, finish in happened:
            given = (user, tags, finish, f"req_{number}")
            told = "UPDATE requests SET end_user = ?, tags = ?, finish_reason = ? WHERE request_id = ?"
            database.execute(told, given)
        who = ("req_0", 0, time.time(), "acme", "k", "pro", "judge", "j", "up", "x")
        spending = (*who, 0, 0, 0, 0, 10**9, 0, 0, 0)
        database.execute(f"INSERT INTO spendings VALUES ({', '.join('?' * 18)}, '', '', 0)", spending)
        database.commit()
    assert [(row["user"], float(row["usd"])) for row in lines(capsys, ledger, "--by", "user")] == [
        ("u1", 7),
        ("u2", 7),
        ("", 2),
    ]
    by_tag = {
        row["tag"]: (row["requests"], float(row["usd"])) for row in lines(capsys, ledger, "--by", "tag")
    }
    assert by_tag == {"web": ("2", 13), "nightly": ("1", 6), "": ("2", 3)}
    found = lines(capsys, ledger, "--by", "finish_reason", "user")
    assert {(row["finish_reason"], row["user"]) for row in found} == {
        ("stop", "u1"),
        ("length", "u2"),
        ("", ""),
    }
    assert main(["usage", "--ledger", ledger, "--by", "tag"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["total", "4"]


def test_an_older_ledger_knows_nothing_of_it(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(ledger)) as database:
        database.execute("DROP INDEX requests_by_experiment")
        for name in HAPPENED:
            database.execute(f"ALTER TABLE requests DROP COLUMN {name}")
        database.commit()
    assert [row["user"] for row in lines(capsys, ledger, "--by", "user")] == [""]
