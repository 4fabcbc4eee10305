"""Usage by what only the rows of requests know: end user, tag, how an answer ended, experiment and arm.

The sums by hour and day (``gateway.observe.ledger.usage_query``) leave that out, as there may be as many groups as
requests: each request of the time asked for is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from gateway.databases.database import Database
from gateway.databases.tables import COUNTS, DAY, HOUR, TOKENS, exact, exact_sum
from gateway.observe.ledger.usage_query import (
    COLUMNS,
    GROUPS,
    SUMS,
    Detail,
    Group,
    Interval,
    UsageFilter,
    read_usage,
)
from gateway.observe.ledger.usage_rows import usage_rows

DETAILS: tuple[Detail, ...] = get_args(Detail)
_READ_IF_ASKED = ("user_agent", "finish_reason", "experiment", "arm", "end_user", "tags")
"""Columns that rows of usage have only where they are named."""


def read_any_usage(
    database: Database, where: UsageFilter, by: Sequence[Group] = (), interval: Interval | None = None
) -> list[dict[str, Any]]:
    """As ``read_usage``, by any group; ``where.equal`` may have any, too.

    A request with several tags counts under each of them. Months that were rolled up know no details. Raises
    ``DatabaseError``.
    """
    asked = {*by, *(group for group, _ in where.equal)}
    if asked.isdisjoint(DETAILS):
        return read_usage(database, where, by, interval)
    if not database.exists():
        return []
    with database.reading() as reader:
        columns = [COLUMNS[group] for group in GROUPS if group in asked]
        rows = usage_rows(reader, [column for column in columns if column in _READ_IF_ASKED])
        if not rows:
            return []
        query, parameters = _query(database, rows, where, by, interval)
        found = [_whole(row) for row in reader.rows(query, parameters)]
    if "tag" in by:
        only = next((value for group, value in where.equal if group == "tag"), None)
        found = _by_tag(found, by, only)
    if interval is not None:
        return sorted(found, key=lambda row: (row["start"], -row["cost_nanodollars"], -row["requests"]))
    return sorted(found, key=lambda row: (-row["cost_nanodollars"], -row["requests"], *map(row.get, by)))


def _query(
    database: Database, rows: str, where: UsageFilter, by: Sequence[Group], interval: Interval | None
) -> tuple[str, dict[str, Any]]:
    since, until = int(where.since // HOUR * HOUR), -int(-where.until // HOUR * HOUR)
    names: dict[str, str] = {f"of_{group}": f"coalesce({COLUMNS[group]}, '')" for group in by}
    if interval is not None:
        second = database.second("created")
        spans = {"hour": f"{second} - {second} % {HOUR}", "day": f"{second} - {second} % {DAY}"}
        names = {"start": spans.get(interval) or database.month(second), **names}
    columns = [f"{expression} AS {name}" for name, expression in names.items()]
    counts = [f"sum({name}) AS {name}" for name in COUNTS]
    sums = [exact_sum(name) for name in (*TOKENS, "cost_nanodollars")]
    conditions = "".join(f" AND {_condition(group)}" for group, _ in where.equal)
    grouping = f" GROUP BY {', '.join(str(place + 1) for place in range(len(names)))}" if names else ""
    having = "" if names else " HAVING sum(requests) IS NOT NULL"
    query = (
        f"SELECT {', '.join([*columns, *counts, *sums])} FROM ({rows}) AS found "
        f"WHERE created < :until{conditions}{grouping}{having}"
    )
    equal = {f"equal_{group}": value for group, value in where.equal}
    return query, {"since": since, "until": until, **equal}


def _condition(group: Group) -> str:
    if group == "tag":
        return "replace(tags, ',' || :equal_tag || ',', '') <> tags"
    return f"coalesce({COLUMNS[group]}, '') = :equal_{group}"


def _whole(row: dict[str, Any]) -> dict[str, Any]:
    names = {name.removeprefix("of_"): row[name] for name in row if name == "start" or name.startswith("of_")}
    sums = {name: exact(row, name) for name in (*TOKENS, "cost_nanodollars")}
    return {**names, **{name: row[name] for name in COUNTS}, **sums}


def _by_tag(found: Sequence[dict[str, Any]], by: Sequence[Group], only: str | None) -> list[dict[str, Any]]:
    """Rows of each tag alone, or of ``only`` that one."""
    alone: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in found:
        for tag in [one for one in row["tag"].split(",") if one] or [""]:
            if only is not None and tag != only:
                continue
            told = {**row, "tag": tag}
            before = alone.setdefault((told.get("start"), *map(told.get, by)), told)
            if before is not told:
                for name in SUMS:
                    before[name] += row[name]
    return [*alone.values()]
