from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gateway.cli import usage
from gateway.databases.database import Database
from gateway.databases.postgres import PostgresDatabase
from gateway.databases.sqlite import SqliteDatabase
from gateway.metering.bill import Bill, Charge
from gateway.observe.ended import Ended
from gateway.observe.ledger.ledger import Ledger
from gateway.types import Principal, Purpose, UpstreamUsage, Usage
from tests.fakes import CANDIDATE, TARGET, a_bill, a_call
from tests.ledgers import SQLITE_AND_POSTGRES, rows, told
from tests.postgres_server import PostgresServer

Run = Callable[..., tuple[int, str, str]]

DAY = 86400.0


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """Where the policy says that the ledger is: a file, unless the test is to have both kinds."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return SqliteDatabase(tmp_path / "state" / "costs.sqlite")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return PostgresDatabase(server.url(server.new_database()))


both = pytest.mark.parametrize("database", SQLITE_AND_POSTGRES, indirect=True)


@pytest.fixture
def folder(tmp_path: Path, database: Database) -> Path:
    # Sound enough to find the ledger, though not to serve.
    where = "path: costs.sqlite" if isinstance(database, SqliteDatabase) else f"store: '{told(database)}'"
    (tmp_path / "gateway.yaml").write_text(f"version: 1\nledger: {{{where}}}\nstore: ${{NOT_SET_HERE}}\n")
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TOLLGATE_STATE_DIR", str(folder / "state"))
    parser = argparse.ArgumentParser()
    usage.add_parser(parser.add_subparsers())

    def run(*arguments: str) -> tuple[int, str, str]:
        parsed = parser.parse_args(["usage", "--policies", str(folder), *arguments])
        code = parsed.run(parsed)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def recorded(database: Database) -> None:
    ledger = Ledger(database)
    now = time.time()
    for number, (tenant, key, days, answered, status, cost) in enumerate(
        [
            ("acme", "a", 0.0, True, 200, 1_500_000_000),
            ("acme", "b", 0.0, True, 200, 2_000_000_000),
            ("hobby", "c", 0.0, False, 429, 0),
            ("hobby", "c", 3.0, True, 200, 1),
            ("gone", "d", 40.0, True, 200, 9_000_000_000),
        ]
    ):
        call = a_call(principal=Principal(key, tenant), request_id=f"req_{number}", model="alias")
        call.receipt.created = now - days * DAY
        call.candidate = CANDIDATE if answered else None
        used = Usage(1000, 10, cached=5, reasoning=2, cache_write=7)
        error = None if answered else "rate_limit_exceeded"
        ledger.record(Ended(call, a_bill(used, cost) if answered else Bill(), status, error))
    assert ledger.wait_drained(300)
    asyncio.run(ledger.aclose())


@both
def test_counts_beyond_63_bits_are_added_up(run: Run, database: Database) -> None:
    """As an older gateway believed its upstreams."""
    ledger = Ledger(database)
    for number in range(3):
        call = a_call(principal=Principal("k", "acme"), request_id=f"req_{number}")
        call.receipt.created = time.time()
        ledger.record(Ended(call, a_bill(Usage(2**62, 2**62 + 1, cached=2**62), 2**62), 200))
    assert ledger.wait_drained(300)
    asyncio.run(ledger.aclose())
    code, out, err = run("--json")
    assert (code, err) == (0, "")
    (row,) = json.loads(out)
    assert (row["requests"], row["prompt_tokens"], row["completion_tokens"]) == (3, 3 * 2**62, 3 * 2**62 + 3)
    assert row["usd"] == 3 * 2**62 / 10**9
    assert run()[0] == 0


@both
def test_a_table_by_tenant(run: Run, recorded: None) -> None:
    code, out, _ = run()
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        [
            "TENANT",
            "REQUESTS",
            "ERRORS",
            "REFUSED",
            "PROMPT",
            "CACHED",
            "WRITTEN",
            "COMPLETION",
            "REASONING",
            "USD",
        ],
        ["acme", "2", "0", "0", "2,000", "10", "14", "20", "4", "3.5000"],
        ["hobby", "2", "1", "1", "1,000", "5", "7", "10", "2", "0.0000"],
        ["total", "4", "1", "1", "3,000", "15", "21", "30", "6", "3.5000"],
    ]
    assert len({len(line) for line in out.splitlines()}) == 1


@both
@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--since", "60d"], ["gone", "acme", "hobby"]),
        (["--by", "key"], ["b", "a", "c"]),
        (["--by", "model"], ["m", "alias"]),
        (["--by", "tenant", "--since", "1h"], ["acme", "hobby"]),
        (["--by", "reason"], ["ok", "rate_limit_exceeded"]),
    ],
)
def test_json(run: Run, recorded: None, arguments: list[str], names: list[str]) -> None:
    code, out, _ = run("--json", *arguments)
    by = arguments[arguments.index("--by") + 1] if "--by" in arguments else "tenant"
    assert code == 0 and [row[by] for row in json.loads(out)] == names


@both
def test_each_spending_is_under_its_own_model_and_purpose(run: Run, database: Database) -> None:
    def charge(model: str, purpose: Purpose, nanodollars: int) -> Charge:
        return Charge(UpstreamUsage(TARGET, Usage(10, 5), False, purpose, model), nanodollars)

    ledger = Ledger(database)
    call = a_call(principal=Principal("a", "acme"), model="auto")
    call.receipt.created = now = time.time()
    call.candidate = CANDIDATE
    charges = (charge("small", "step", 1_000_000_000), charge("m", "answer", 2_000_000_000))
    ledger.record(Ended(call, Bill(charges, 30, 3_000_000_000), 504, "upstream_timeout"))
    ledger.record_charges(
        "req_s", now, Principal("shadow", "house"), [charge("small", "shadow", 4_000_000_000)]
    )
    assert ledger.wait_drained(300)
    asyncio.run(ledger.aclose())

    def told(by: str) -> dict[str, tuple[int, int, float]]:
        rows = json.loads(run("--by", by, "--json")[1])
        return {row[by]: (row["requests"], row["prompt_tokens"], row["usd"]) for row in rows}

    assert told("model") == {"small": (0, 20, 5.0), "m": (1, 10, 2.0)}
    assert told("purpose") == {"shadow": (0, 10, 4.0), "answer": (1, 10, 2.0), "step": (0, 10, 1.0)}
    assert told("tenant") == {"house": (0, 10, 4.0), "acme": (1, 20, 3.0)}
    assert told("reason") == {"shadow": (0, 10, 4.0), "upstream_timeout": (1, 20, 3.0)}


@pytest.mark.parametrize("by", ["tenant", "model", "purpose", "reason", "day"])
def test_a_ledger_from_before_spendings_is_read_all_the_same(
    run: Run, recorded: None, folder: Path, by: str
) -> None:
    rows = json.loads(run("--by", by, "--json")[1])
    with closing(sqlite3.connect(folder / "state" / "costs.sqlite")) as file:
        file.execute("DROP VIEW spent")
        file.execute("DROP TABLE spendings")
    assert json.loads(run("--by", by, "--json")[1]) == rows


@pytest.mark.parametrize("by", ["tenant", "key", "model", "purpose", "day", "reason"])
def test_rows_before_the_span_are_not_read(recorded: None, database: Database, by: str) -> None:
    with database.reading() as reader:
        plan = reader.rows("EXPLAIN QUERY PLAN " + usage.query(database, reader, (by,)), {"since": 0})
    steps = [step["detail"] for step in plan]
    reads = [step for step in steps if step.startswith(("SCAN requests", "SEARCH requests", "SCAN spend"))]
    assert any("requests_by_time (created>?)" in step for step in reads)
    assert not any(step.startswith("SCAN") for step in reads)


@both
def test_by_day_the_oldest_comes_first(run: Run, recorded: None) -> None:
    rows = json.loads(run("--by", "day", "--json")[1])
    assert [row["usd"] for row in rows] == [1e-9, 3.5]
    assert [row["day"] for row in rows] == sorted(row["day"] for row in rows)


def test_nothing_recorded_yet(run: Run, folder: Path) -> None:
    assert run("--json") == (0, "[]\n", "")
    code, out, _ = run("--since", "12h")
    assert code == 0 and "No requests in the last 12h in" in out and "costs.sqlite" in out
    assert not (folder / "state").exists()


@both
def test_another_ledger_than_the_policys(run: Run, recorded: None, database: Database, folder: Path) -> None:
    (folder / "gateway.yaml").write_text("version: 1\n")
    assert json.loads(run("--json")[1]) == []
    assert {row["tenant"] for row in json.loads(run("--json", "--ledger", told(database))[1])} == {
        "acme",
        "hobby",
    }


@pytest.mark.parametrize("where", ["postgresql://u:pw@h/d", "postgresql://u@h/d?password=pw"])
def test_a_password_that_everybody_would_see_is_refused(run: Run, where: str) -> None:
    code, _, err = run("--ledger", where)
    assert code == 1 and "PGPASSWORD" in err and "pw" not in err


def test_what_it_refuses(run: Run, folder: Path) -> None:
    code, _, err = run("--since", "soon")
    assert code == 2 and "--since" in err and "--roll-up" not in err
    code, _, err = run("--roll-up", "soon")
    assert code == 2 and err.startswith("tollgate usage: --roll-up: 'soon' is no span")
    (folder / "state").mkdir()
    (folder / "state" / "costs.sqlite").write_text("not a database, and long enough to be looked at " * 10)
    code, _, err = run()
    assert code == 1 and "costs.sqlite" in err
    (folder / "gateway.yaml").unlink()
    code, _, err = run()
    assert code == 1 and "holds no *.yaml file" in err


@both
def test_a_roll_up_keeps_every_nanodollar(run: Run, database: Database) -> None:
    now = time.time()
    ledger = Ledger(database)
    for number in range(60):
        call = a_call(principal=Principal("k", f"t{number % 2}"), request_id=f"req_{number}", model="alias")
        call.receipt.created = now - number * 5 * DAY
        call.candidate = CANDIDATE
        ledger.record(Ended(call, a_bill(Usage(10, 2**61 if number > 50 else 1), 2**62 + number), 200))
        if number % 3 == 0:
            judge = Charge(UpstreamUsage(TARGET, Usage(7, 8), False, "judge", "guard"), 333_333_333)
            ledger.record_charges(f"req_{number}", call.receipt.created, call.principal, [judge])
    assert ledger.wait_drained(300)
    asyncio.run(ledger.aclose())
    groups = ["tenant", "key", "model", "purpose", "reason"]
    before = [json.loads(run("--since", "1000d", "--by", by, "--json")[1]) for by in groups]
    code, _, errors = run("--since", "1000d", "--roll-up", "60d", "--json")
    assert code == 0 and int(errors.split()[0]) > 40
    after = [json.loads(run("--since", "1000d", "--by", by, "--json")[1]) for by in groups]
    assert after == before
    costs = rows(database, "SELECT cost_nanodollars FROM months UNION ALL SELECT cost_nanodollars FROM spent")
    assert (
        sum(row["cost_nanodollars"] for row in costs) == sum(2**62 + n for n in range(60)) + 20 * 333_333_333
    )
    [oldest] = rows(database, "SELECT min(created) AS created FROM spent")
    assert now - 91 * DAY < oldest["created"], "months that ended 60 days ago are gone"
    for table in ("hours", "days"):
        [kept] = rows(database, f"SELECT min(start) AS start FROM {table}")
        assert kept["start"] <= oldest["created"] < kept["start"] + DAY
    assert run("--roll-up", "60d")[2].startswith("0 requests"), "once"


def test_rows_that_limits_by_the_month_need_are_kept(run: Run, recorded: None) -> None:
    code, _, errors = run("--roll-up", "30d")
    assert code == 2 and "at least 31d" in errors


def test_a_ledger_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    usage.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["usage", "--ledger", str(tmp_path / "none.sqlite")])
    assert arguments.run(arguments) == 1
    assert "none.sqlite" in capsys.readouterr().err
