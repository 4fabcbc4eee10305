"""Usage from the ledger: by the hour, from its sums, and what callers have used in this day and month.

A query over millions of requests reads some thousand rows of sums. Whole days are read from ``days``, the hours before
and after them from ``hours`` (``gateway.databases.tables``); months that were rolled up
(``gateway.observe.ledger.usage_rows``) are added, without what they do not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from gateway.databases.database import Database
from gateway.databases.tables import COUNTS, DAY, HALF, HOUR, SUMMED, TOKENS, exact, exact_sum
from gateway.metering.window_usage import WindowUsage

Summed = Literal["tenant", "key", "model", "backend", "user_agent", "purpose", "reason"]
Detail = Literal["user", "tag", "finish_reason", "experiment", "arm"]
"""What no sum knows (``gateway.observe.ledger.usage_detail``)."""
Group = Literal[Summed, Detail]
Interval = Literal["hour", "day", "month"]

GROUPS: tuple[Group, ...] = get_args(Group)
COLUMNS: dict[Group, str] = {
    **{name: name for name in ("tenant", "model", "backend", "user_agent", "purpose", "reason")},
    **{name: name for name in ("finish_reason", "experiment", "arm")},
    "key": "key_id",
    "user": "end_user",
    "tag": "tags",
}
SUMS = (*COUNTS, *TOKENS, "cost_nanodollars")
"""The columns that rows have beside their groups."""
_UNKNOWN = frozenset[Group](("backend", "user_agent"))
"""Of months."""
_MONTHS = (
    "SELECT CAST(created AS BIGINT) AS start, tenant, key_id, model, '' AS backend, '' AS user_agent, purpose, reason, "
    + ", ".join(name for name in SUMMED if not name.startswith("cost"))
    + f", cost_nanodollars >> {HALF} AS cost_high, cost_nanodollars & {2**HALF - 1} AS cost_low FROM months"
)


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """What counts: from the hour of ``since`` to the end of that before ``until`` (Unix time), and of whom."""

    since: float
    until: float
    equal: tuple[tuple[Group, str], ...] = ()


def read_usage(
    database: Database, where: UsageFilter, by: Sequence[Group] = (), interval: Interval | None = None
) -> list[dict[str, Any]]:
    """A row for each group and interval that has any requests or charges, the dearest first; in order of time where
    there is an ``interval``. ``cost_nanodollars`` is exact. No group is a ``Detail``. Raises ``DatabaseError``."""
    if not database.exists():
        return []
    with database.reading() as reader:
        tables = reader.tables()
        # Before version 6 the hours' column had another name, and nobody reads what a writer is about to bring up to
        # date.
        if "days" not in tables:
            return []
        query, parameters = _query(where, by, _starts(database, interval), whole_days=interval != "hour")
        found = reader.rows(query, parameters)
    rows = [_row(row) for row in found]
    if interval is not None:
        return sorted(rows, key=lambda row: (row["start"], -row["cost_nanodollars"], -row["requests"]))
    return sorted(rows, key=lambda row: (-row["cost_nanodollars"], -row["requests"], *map(row.get, by)))


def _starts(database: Database, interval: Interval | None) -> str | None:
    match interval:
        case "hour":
            return "start"
        case "day":
            return f"start - start % {DAY}"
        case "month":
            return database.month("start")
        case None:
            return None


def _query(
    where: UsageFilter, by: Sequence[Group], starts: str | None, *, whole_days: bool
) -> tuple[str, dict[str, Any]]:
    since, until = int(where.since // HOUR * HOUR), -int(-where.until // HOUR * HOUR)
    first, last = -(-since // DAY) * DAY, until // DAY * DAY
    parameters: dict[str, Any] = {"since": since, "until": until, **dict(where.equal)}
    equal = [f"{COLUMNS[group]} = :{group}" for group, _ in where.equal]

    names: dict[str, str] = {group: COLUMNS[group] for group in by}
    if starts is not None:
        names = {"start": starts, **names}
    grouping = f" GROUP BY {', '.join(str(number + 1) for number in range(len(names)))}" if names else ""
    sums = [f"sum({name}) AS {name}" for name in SUMMED]
    columns = ", ".join([*(f"{column} AS {name}" for name, column in names.items()), *sums])

    def part(table: str, *span: str) -> str:
        # Each is summed by itself: to hand rows of 18 columns on to the union costs more than to add them up.
        return f"SELECT {columns} FROM {table} WHERE {' AND '.join((*span, *equal))}{grouping}"

    if whole_days and first < last:
        parameters |= {"first": first, "last": last}
        parts = [
            part("days", "start >= :first", "start < :last"),
            part("hours", "start >= :since", "start < :first"),
            part("hours", "start >= :last", "start < :until"),
        ]
    else:
        parts = [part("hours", "start >= :since", "start < :until")]
    if _UNKNOWN.isdisjoint(group for group, _ in where.equal):
        parts.append(part(f"({_MONTHS}) AS months", "start >= :since", "start < :until"))
    whole = ", ".join([*names, *sums])
    # Without a group each part has a row, of nulls where nothing was found.
    having = grouping or " HAVING sum(requests) IS NOT NULL"
    return f"SELECT {whole} FROM ({' UNION ALL '.join(parts)}) AS found{having}", parameters


def _row(row: dict[str, Any]) -> dict[str, Any]:
    cost = exact(row, "cost")
    return {**row, "cost_nanodollars": cost}


_WINDOWS = f"""
SELECT tenant, key_id, tier, created >= :day AS today, {exact_sum("tokens", "(prompt_tokens + completion_tokens)")},
    {exact_sum("cost", "cost_nanodollars")}
FROM {{table}} WHERE created >= :month GROUP BY tenant, key_id, tier, today
"""


def read_window_usage(database: Database, now: float) -> list[WindowUsage]:
    """One for each caller and window (the UTC day and month of ``now``, Unix time) with any usage.

    Raises ``DatabaseError`` where the ledger cannot be read; a missing one is empty.
    """
    if not database.exists():
        return []
    at = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    begins = {"day": at.timestamp(), "month": at.replace(day=1).timestamp()}
    months: dict[tuple[str, str, str], tuple[int, int]] = {}
    found: list[WindowUsage] = []
    with database.reading() as reader:
        tables = reader.tables()
        if "requests" not in tables:
            return []
        # Since version 4 charges other than answers have rows of their own.
        rows = reader.rows(_WINDOWS.format(table="spent" if "spent" in tables else "requests"), begins)
    for row in rows:
        tokens, cost = exact(row, "tokens"), exact(row, "cost")
        who = (row["tenant"], row["key_id"], row["tier"])
        before = months.get(who, (0, 0))
        months[who] = (before[0] + tokens, before[1] + cost)
        if row["today"]:
            found.append(WindowUsage(*who, "day", tokens, cost))
    return found + [WindowUsage(*who, "month", *sums) for who, sums in months.items()]
