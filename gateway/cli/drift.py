"""``tollgate drift``: what differs from the same hour of earlier weeks."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from gateway.cli import init
from gateway.cli.user import state_dir
from gateway.databases.database import DatabaseError
from gateway.databases.opening import open_tables
from gateway.drift.table import DRIFT, DriftTable, FoundDrift
from gateway.policy.key_store import state_files
from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.schema import parse_duration
from gateway.policy.variables import Variables


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "drift",
        help="show what models are asked and do otherwise than in earlier weeks",
        description="Show which measures of a model and route differ from the same hour of the four weeks before, as "
        "gateways with 'drift' in their policy have found it. Hours are UTC's.",
    )
    parser.add_argument("--policies", metavar="DIR", help="the policy folder (policies)")
    parser.add_argument(
        "--since", metavar="SPAN", help="those that are over as well, of so far back, as 12h or 30d"
    )
    parser.add_argument("--json", action="store_true", help="print JSON rather than a table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exits with 0, 1 where it could not be done, 2 for a policy or options that are wrong."""
    try:
        span = parse_duration(arguments.since) if arguments.since is not None else None
    except ValueError:
        print("tollgate drift: --since: write a span, as 12h or 30d", file=sys.stderr)
        return 2
    try:
        folder = init.folder(arguments.policies, os.environ)
        policy = load_policy(folder, Variables(), also=state_files(state_dir())).policy
    except PolicyError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        table = DriftTable(open_tables(DRIFT, policy.ledger, state_dir()))
        found = table.lasting() if span is None else table.found(int(time.time() - span))
        until, settled, known = _state(table)
    except DatabaseError as error:
        print(f"tollgate drift: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        content = {"judged_until": until, "measures": known, "settled": settled, "drifts": _told(found)}
        print(json.dumps(content, indent=2))
    elif policy.drift is None and until is None:
        print("Nothing is looked at: the policy has no 'drift: {}'.")
    else:
        _print_table(found)
        print(f"{settled} of {known} measures are known well enough; {_judged(until)}.")
    return 0


def _state(table: DriftTable) -> tuple[int | None, int, int]:
    usual = [one for measures in table.usual().values() for one in measures.values()]
    until = table.judged_until() if table.exists else None
    return until, sum(one.is_settled for one in usual), len(usual)


def _judged(until: int | None) -> str:
    return "no hour was judged yet" if until is None else f"the last hour that was judged is {_hour(until)}"


def _told(found: list[FoundDrift]) -> list[dict[str, Any]]:
    return [{**asdict(one), "facts": dict(one.facts)} for one in found]


def _print_table(found: list[FoundDrift]) -> None:
    if not found:
        print("Nothing drifts.")
        return
    lines = [
        ("SINCE", "UNTIL", "MODEL", "ROUTE", "MEASURE", "WAS", "IS", "PSI", "BY"),
        *(
            (
                _hour(one.since),
                _hour(one.until) if one.until is not None else "",
                *(one.model, one.route, _measure(one)),
                *(str(one.facts.get(name, "")) for name in ("before", "now", "psi", "test")),
            )
            for one in found
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _measure(one: FoundDrift) -> str:
    return f"{one.measure}: {one.facts['name']}" if "name" in one.facts else one.measure


def _hour(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
