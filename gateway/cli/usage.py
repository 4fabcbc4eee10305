"""``tollgate usage``: what was asked and what it cost, from the ledger."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from gateway.cli import init
from gateway.databases.database import Database, DatabaseError, Reader
from gateway.databases.opening import open_database
from gateway.databases.sqlite import SqliteDatabase
from gateway.databases.tables import exact, exact_sum
from gateway.observe.ledger.usage_rows import SUMS, roll_up, usage_rows
from gateway.policy.folder import find, read_folder
from gateway.policy.problems import PolicyError
from gateway.policy.schema import LedgerSettings, parse_duration
from gateway.policy.variables import Variables
from gateway.policy.yaml_tree import Scalar
from gateway.settings import Settings, SettingsError
from gateway.text.csv_cell import csv_cell

NANO = 10**9

_GROUPS = {
    # An expression: by the bare column SQLite would walk the index by tenant, past every row before ``since``.
    "tenant": "tenant || ''",
    "key": "tenant || ' ' || key_id",
    "model": "model",
    "backend": "backend",
    "purpose": "purpose",
    "day": "{day}",
    "reason": "reason",
    "user": "end_user",
    "tag": "tags",
    "finish_reason": "finish_reason",
    "experiment": "experiment",
    "arm": "arm",
}
_HAPPENED = frozenset({"end_user", "tags", "finish_reason", "experiment", "arm"})
"""Columns that only those read who group by them."""
_QUERY = """
SELECT {groups}, sum(requests) AS requests, sum(errors) AS errors, sum(refused) AS refused, {sums}
FROM ({rows}) AS found {where} GROUP BY {names}
"""
LEAST_KEPT = 31 * 86_400.0
_HEADINGS = ("REQUESTS", "ERRORS", "REFUSED", "PROMPT", "CACHED", "WRITTEN", "COMPLETION", "REASONING", "USD")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "usage",
        help="show requests, tokens and cost",
        description="Show requests, tokens and cost, as the ledger has recorded them. Errors are requests that failed, "
        "refused ones included: those that were turned away before a model was asked. Tokens and cost are under the "
        "model that they were spent on, whoever answered; 'purpose' separates answers from a cascade's discarded "
        "steps, broken-off attempts, shadow copies and judges. Days are UTC's.",
    )
    parser.add_argument(
        "--policies",
        metavar="DIR",
        help="the policy folder (policies)",
    )
    parser.add_argument(
        "--ledger",
        metavar="WHERE",
        help="another ledger than the policy's: an SQLite file, or postgresql://user@host/database without a password, "
        "which others would see: put it into PGPASSWORD, or a file that PGPASSFILE names",
    )
    parser.add_argument("--since", metavar="SPAN", default="30d", help="how far back, as 12h or 30d (30d)")
    parser.add_argument(
        "--by",
        type=_by,
        nargs="+",
        action="extend",
        metavar="GROUP",
        help=f"one line for each of {', '.join(_GROUPS)}; several as tenant,model or tenant model (tenant)",
    )
    parser.add_argument("--tenant", metavar="NAME", help="of this one alone")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON rather than a table")
    form.add_argument("--csv", action="store_true", help="print CSV rather than a table")
    parser.add_argument(
        "--roll-up",
        metavar="SPAN",
        help="first sum up each month that ended longer ago than this (at least 31d), and delete its rows",
    )
    parser.set_defaults(run=run)


def _by(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if odd := [name for name in names if name not in _GROUPS]:
        raise argparse.ArgumentTypeError(f"there is no {odd[0]!r}; there is {', '.join(_GROUPS)}")
    return names


def run(arguments: argparse.Namespace) -> int:
    groups = tuple(dict.fromkeys(name for names in arguments.by or [("tenant",)] for name in names))
    spans: dict[str, float] = {}
    for option, text in (("--since", arguments.since), ("--roll-up", arguments.roll_up)):
        try:
            if text is not None:
                spans[option] = parse_duration(text)
        except ValueError:
            print(f"tollgate usage: {option}: {text!r} is no span; write one as 12h or 30d", file=sys.stderr)
            return 2
    span, keep = spans["--since"], spans.get("--roll-up")
    if keep is not None and keep < LEAST_KEPT:
        print(
            "tollgate usage: --roll-up: at least 31d, as limits by the month are counted by rows",
            file=sys.stderr,
        )
        return 2
    try:
        database = ledger_of(arguments.ledger, init.folder(arguments.policies, os.environ))
    except (PolicyError, SettingsError) as error:
        print(error, file=sys.stderr)
        return 1
    try:
        if keep is not None and database.exists():
            requests = roll_up(database, time.time() - keep)
            print(f"{requests:,} requests of earlier months were rolled up.", file=sys.stderr)
        whole = usage_since(database, groups, time.time() - span, arguments.tenant)
    except DatabaseError as error:
        print(f"tollgate usage: {database}: {error}", file=sys.stderr)
        return 1
    found = _by_tag(groups, whole)
    if arguments.json:
        print(json.dumps([_told(groups, row) for row in found], indent=2))
    elif arguments.csv:
        _print_csv(groups, found)
    elif not found:
        whose = f" of tenant '{arguments.tenant}'" if arguments.tenant is not None else ""
        print(f"No requests{whose} in the last {arguments.since} in {database}.")
    else:
        _print_table(groups, found, whole)
    return 0


def ledger_of(given: str | None, policies: Path) -> Database:
    """The one given, or where the gateway writes. The rest of the policy need not be sound for that."""
    if given is not None and "://" not in given:
        try:
            there = Path(given).is_file()
        except OSError as error:
            raise SettingsError(f"tollgate usage: --ledger: {given}: {error.strerror or error}") from None
        if not there:
            raise SettingsError(f"tollgate usage: --ledger: there is no file '{given}'")
        return SqliteDatabase(Path(given))
    if given is not None:
        if urlsplit(given).password is not None or "password=" in given:
            raise SettingsError(
                "tollgate usage: --ledger: leave the password out, as everybody on this machine sees a command's "
                "arguments, and put it into PGPASSWORD, or into a file that PGPASSFILE names"
            )
        told = {"store": given}
    else:
        root = read_folder(policies, Variables()).root
        nodes = ((name, find(root, ("ledger", name))) for name in ("store", "path", "password_file"))
        told = {name: node.text for name, node in nodes if isinstance(node, Scalar)}
    try:
        return open_database(LedgerSettings(**told), Settings.from_env(Variables()).state_dir)
    except ValidationError as error:
        where, message = error.errors()[0]["loc"], error.errors()[0]["msg"]
        raise SettingsError(f"tollgate usage: ledger.{'.'.join(map(str, where))}: {message}") from None


def usage_since(
    database: Database, by: Sequence[str], since: float, tenant: str | None = None
) -> list[dict[str, Any]]:
    if not database.exists():
        return []
    with database.reading() as reader:
        asked = query(database, reader, by, tenant)
        found = (
            [
                _whole(row, len(by))
                for row in reader.rows(
                    asked, {"since": since, "tenant": tenant} if tenant else {"since": since}
                )
            ]
            if asked
            else []
        )
    return _sorted(by, found)


def _sorted(by: Sequence[str], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if by[0] == "day":
        return sorted(found, key=lambda row: tuple(map(str, row["names"])))
    return sorted(
        found, key=lambda row: (-row["cost_nanodollars"], -row["requests"], tuple(map(str, row["names"])))
    )


def _by_tag(by: Sequence[str], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of each tag alone: a request with several counts under each."""
    if "tag" not in by:
        return found
    place = by.index("tag")
    alone: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in found:
        for tag in [one for one in row["names"][place].split(",") if one] or [""]:
            names = (*row["names"][:place], tag, *row["names"][place + 1 :])
            before = alone.get(names)
            figures = {name: value for name, value in row.items() if name != "names"}
            if before is not None:
                figures = {name: value + before[name] for name, value in figures.items()}
            alone[names] = {"names": names, **figures}
    return _sorted(by, [*alone.values()])


def query(database: Database, reader: Reader, by: Sequence[str], tenant: str | None = None) -> str:
    """The query for a ledger of any version, with the parameters ``since`` (Unix time) and ``tenant`` where one is
    given; empty for one without tables."""
    rows = usage_rows(reader, [_GROUPS[one] for one in by if _GROUPS[one] in _HAPPENED])
    names = [f"name_{number}" for number in range(len(by))]
    groups = [
        f"{_GROUPS[one].format(day=database.day('created'))} AS {name}"
        for one, name in zip(by, names, strict=True)
    ]
    where = "WHERE tenant = :tenant" if tenant else ""
    parts = {"groups": ", ".join(groups), "names": ", ".join(names), "where": where}
    return _QUERY.format(rows=rows, sums=", ".join(map(exact_sum, SUMS)), **parts) if rows else ""


def _whole(row: dict[str, Any], groups: int) -> dict[str, Any]:
    names = tuple(row.pop(f"name_{number}") for number in range(groups))
    sums = {name: exact(row, name) for name in SUMS}
    return {"names": names, **row, **sums}


def _told(by: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    entry = dict(zip(by, row["names"], strict=True)) | {key: row[key] for key in row if key != "names"}
    entry["usd"] = entry.pop("cost_nanodollars") / NANO
    if "key" in by:
        tenant, _, key = entry["key"].partition(" ")
        entry |= {"tenant": tenant, "key": key}
    return entry


def _print_csv(by: Sequence[str], found: Sequence[Mapping[str, Any]]) -> None:
    named = [*dict.fromkeys(("tenant", *by))] if "key" in by else [*by]
    others = ("requests", "errors", "refused", *SUMS[:-1], "usd")
    writer = csv.DictWriter(sys.stdout, [*named, *others], lineterminator="\n")
    writer.writeheader()
    for row in found:
        told = _told(by, row)
        names = {name: csv_cell(told[name]) for name in named}
        writer.writerow(told | names | {"usd": f"{told['usd']:.9f}"})


def _print_table(
    by: Sequence[str], found: Sequence[Mapping[str, Any]], whole: Sequence[Mapping[str, Any]]
) -> None:
    """``whole``: rows that have each request once, for the sum."""
    figures, once = (
        [[figure for key, figure in row.items() if key != "names"] for row in rows] for rows in (found, whole)
    )
    sums = [sum(column) for column in zip(*once, strict=True)]
    lines = [
        (*map(str.upper, by), *_HEADINGS),
        *((*map(str, row["names"]), *_cells(each)) for row, each in zip(found, figures, strict=True)),
        *([("total", *[""] * (len(by) - 1), *_cells(sums))] if len(found) > 1 else []),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell.ljust(width) if place < len(by) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join(cells))


def _cells(figures: Iterable[int]) -> list[str]:
    *counts, nanodollars = figures
    return [*(f"{count:,}" for count in counts), f"{nanodollars / NANO:,.4f}"]
