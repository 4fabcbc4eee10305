"""``tollgate usage``: what was asked and what it cost, from the ledger."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway.cli import init
from gateway.observe.roll_up import SUMS, roll_up
from gateway.policy.folder import find, read_folder
from gateway.policy.problems import PolicyError
from gateway.policy.schema import LedgerSettings, parse_duration
from gateway.policy.yaml_tree import Scalar
from gateway.settings import Settings, SettingsError

NANO = 10**9

_GROUPS = {
    "tenant": "+tenant",  # without the sign SQLite walks the index by tenant, past every row before ``since``
    "key": "tenant || ' ' || key_id",
    "model": "model",
    "purpose": "purpose",
    "day": "strftime('%Y-%m-%d', created, 'unixepoch')",
    "reason": "reason",
}
_REFUSED = "({error} IS NOT NULL AND attempts = 0 AND status <> 499 AND status <> 500 AND {error} NOT LIKE 'upstream%')"
"""No model was asked: as ``gateway.observe.outcome.is_refusal`` has it."""
_REASON = "coalesce({error}, iif(status < 400, 'ok', status))"
_TOKENS = "prompt_tokens, cached_tokens, {written} AS cache_write_tokens, completion_tokens, reasoning_tokens"
_REQUESTS = """
SELECT created, tenant, key_id, coalesce(answered_model, model) AS model, 'answer' AS purpose, {reason} AS reason,
    1 AS requests, status >= 400 AS errors, coalesce({refused}, 0) AS refused, {tokens}, cost_nanodollars
FROM requests WHERE created >= :since
"""
_SPENDINGS = """
UNION ALL
SELECT created, tenant, key_id, model, purpose,
    coalesce((SELECT {reason} FROM requests WHERE requests.request_id = spendings.request_id), purpose) AS reason,
    0 AS requests, 0 AS errors, 0 AS refused, {tokens}, cost_nanodollars
FROM spendings WHERE created >= :since
"""
"""All that was paid for beside the answers: a request is counted where its answer is."""
_MONTHS = """
UNION ALL
SELECT created, tenant, key_id, model, purpose, reason, requests, errors, refused, {tokens}, cost_nanodollars
FROM months WHERE created >= :since
"""
_QUERY = """
SELECT {group} AS name, sum(requests) AS requests, sum(errors) AS errors, sum(refused) AS refused, {sums}
FROM ({rows}) GROUP BY name
"""
_REQUESTS_AND_SPENDINGS = (_REQUESTS + _SPENDINGS).format(
    reason=_REASON.format(error="error"),
    refused=_REFUSED.format(error="error"),
    tokens=_TOKENS.format(written="cache_write_tokens"),
)
LEAST_KEPT = 31 * 86_400.0
_HALF = 32
"""Bits. SQLite's sum() of whole numbers fails beyond 63: halves are added up apart, and put together here."""
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
    parser.add_argument("--since", metavar="SPAN", default="30d", help="how far back, as 12h or 30d (30d)")
    parser.add_argument("--by", choices=tuple(_GROUPS), default="tenant", help="one line for each (tenant)")
    parser.add_argument("--json", action="store_true", help="print JSON rather than a table")
    parser.add_argument(
        "--roll-up",
        metavar="SPAN",
        help="first sum up each month that ended longer ago than this (at least 31d), and delete its rows",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        span = parse_duration(arguments.since)
        keep = None if arguments.roll_up is None else parse_duration(arguments.roll_up)
    except ValueError:
        print("tollgate usage: --since, --roll-up: write a span, as 12h or 30d", file=sys.stderr)
        return 2
    if keep is not None and keep < LEAST_KEPT:
        print(
            "tollgate usage: --roll-up: at least 31d, as limits by the month are counted by rows",
            file=sys.stderr,
        )
        return 2
    try:
        path = _ledger(init.folder(arguments.policies, os.environ))
    except (PolicyError, SettingsError) as error:
        print(error, file=sys.stderr)
        return 1
    try:
        if keep is not None and path.exists():
            requests = roll_up(path, _REQUESTS_AND_SPENDINGS, time.time() - keep)
            print(f"{requests:,} requests of earlier months were rolled up.", file=sys.stderr)
        found = _rows(path, arguments.by, time.time() - span) if path.exists() else []
    except sqlite3.Error as error:
        print(f"tollgate usage: {path}: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps([_told(arguments.by, row) for row in found], indent=2))
    elif not found:
        print(f"No requests in the last {arguments.since} in {path}.")
    else:
        _print_table(arguments.by, found)
    return 0


def _ledger(policies: Path) -> Path:
    """Where the gateway writes. The rest of the policy need not be sound for that."""
    node = find(read_folder(policies, os.environ).root, ("ledger", "path"))
    name = node.text if isinstance(node, Scalar) else LedgerSettings().path
    return Settings.from_env(os.environ).state_dir / name


def _rows(path: Path, by: str, since: float) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)) as database:
        database.row_factory = sqlite3.Row
        found = [_whole(dict(row)) for row in database.execute(query(database, by), {"since": since})]
    if by == "day":
        return sorted(found, key=lambda row: str(row["name"]))
    return sorted(found, key=lambda row: (-row["cost_nanodollars"], -row["requests"], str(row["name"])))


def query(database: sqlite3.Connection, by: str) -> str:
    """The query for a ledger of any version, with the parameter ``since`` (Unix time)."""
    # A gateway before version 2 of the ledger did not record why requests failed, before 3 not what was put into
    # prompt caches, and before 4 all charges of a request in one row.
    columns = {row[1] for row in database.execute("PRAGMA table_info(requests)")}
    error = "error" if "error" in columns else "NULL"
    reason = _REASON.format(error=error)
    tokens = _TOKENS.format(written="cache_write_tokens" if "cache_write_tokens" in columns else "0")
    rows = _REQUESTS.format(reason=reason, refused=_REFUSED.format(error=error), tokens=tokens)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "spendings" in tables:
        rows += _SPENDINGS.format(reason=reason, tokens=tokens)
    if "months" in tables:
        rows += _MONTHS.format(tokens=tokens)
    return _QUERY.format(group=_GROUPS[by], rows=rows, sums=_sums())


def _sums() -> str:
    return ", ".join(
        f"sum({name} >> {_HALF}) AS {name}_high, sum({name} & {2**_HALF - 1}) AS {name}_low" for name in SUMS
    )


def _whole(row: dict[str, Any]) -> dict[str, Any]:
    sums = {name: (row.pop(f"{name}_high") << _HALF) + row.pop(f"{name}_low") for name in SUMS}
    return {**row, **sums}


def _told(by: str, row: Mapping[str, Any]) -> dict[str, Any]:
    entry = {by: row["name"], **{key: figure for key, figure in row.items() if key != "name"}}
    entry["usd"] = entry.pop("cost_nanodollars") / NANO
    if by == "key":
        entry["tenant"], _, entry["key"] = row["name"].partition(" ")
    return entry


def _print_table(by: str, found: Sequence[Mapping[str, Any]]) -> None:
    figures = [[figure for key, figure in row.items() if key != "name"] for row in found]
    sums = [sum(column) for column in zip(*figures, strict=True)]
    lines = [
        (by.upper(), *_HEADINGS),
        *((str(row["name"]), *_cells(each)) for row, each in zip(found, figures, strict=True)),
        *([("total", *_cells(sums))] if len(found) > 1 else []),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        print("  ".join((first.ljust(widths[0]), *numbers)))


def _cells(figures: Iterable[int]) -> list[str]:
    *counts, nanodollars = figures
    return [*(f"{count:,}" for count in counts), f"{nanodollars / NANO:,.4f}"]
