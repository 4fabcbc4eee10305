"""``tollgate caches days``: what the semantic cache found, or would have served, by day."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from gateway.databases.database import DatabaseError
from gateway.observe.cache_days import FILE, CacheDay, read_cache_days
from gateway.policy.schema import parse_duration
from gateway.policy.variables import Variables
from gateway.settings import Settings, SettingsError

NANO = 10**9
_REASONS = 3
"""Reasons for serving nothing that a table has room for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", metavar="SPAN", default="30d", help="how far back, as 12h or 30d (30d)")
    parser.add_argument("--by", choices=("tenant", "model"), help="one line for each, and day")
    parser.add_argument("--tenant", metavar="NAME", help="of this one alone")
    parser.add_argument("--json", action="store_true", help="print JSON rather than a table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        span = parse_duration(arguments.since)
    except ValueError:
        print("tollgate caches days: --since: write a span, as 12h or 30d", file=sys.stderr)
        return 2
    try:
        path = Settings.from_env(Variables()).state_dir / FILE
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        found = read_cache_days(path, since=time.time() - span, by=arguments.by, tenant=arguments.tenant)
    except DatabaseError as error:
        print(f"tollgate caches days: {path}: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps([_told(arguments.by, one) for one in found], indent=2))
    elif not found:
        print(f"The semantic cache was not asked in the last {arguments.since}, as {path} has it.")
    else:
        _print_table(arguments.by, found)
    return 0


def _told(by: str | None, one: CacheDay) -> dict[str, object]:
    row = asdict(one)
    name, cost = row.pop("name"), row.pop("hit_nanodollars")
    return {**({by: name} if by else {}), **row, "hit_usd": cost / NANO}


def _print_table(by: str | None, found: Sequence[CacheDay]) -> None:
    lines = [
        (
            "DAY",
            "MODE",
            *((by.upper(),) if by else ()),
            "LOOKUPS",
            "HITS",
            "SHARE",
            "TOKENS",
            "USD",
            "REFUSED FOR",
        ),
        *(
            (
                one.day,
                one.mode,
                *((one.name,) if by else ()),
                f"{one.lookups:,}",
                f"{one.hits:,}",
                f"{one.hits / one.lookups:.1%}",
                f"{one.hit_tokens:,}",
                f"{one.hit_nanodollars / NANO:,.4f}",
                ", ".join(f"{reason} {count:,}" for reason, count in [*one.refused.items()][:_REASONS]),
            )
            for one in found
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    names = 3 if by else 2
    for line in lines:
        cells = [
            cell.rjust(width) if names <= number < len(line) - 1 else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
