"""Usage by the hour, from the ledger: a query over millions of requests reads some thousand rows.

``hours`` is kept by the ledger itself (``gateway.observe.ledger_schema``); months that were rolled up
(``gateway.observe.roll_up``) are added, without what they do not know.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

Group = Literal["tenant", "key", "model", "backend", "user_agent", "purpose", "reason"]
Interval = Literal["hour", "day", "month"]

GROUPS: tuple[Group, ...] = get_args(Group)
HOUR = 3600
_COLUMNS: dict[Group, str] = {
    **{name: name for name in ("tenant", "model", "backend", "user_agent", "purpose", "reason")},
    "key": "key_id",
}
_INTERVALS: dict[Interval, str] = {
    "hour": "hour",
    "day": "hour - hour % 86400",
    "month": "unixepoch(hour, 'unixepoch', 'start of month')",
}
_SUMS = (
    *("requests", "errors", "refused"),
    *("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens"),
)
SUMS = (*_SUMS, "cost_nanodollars")
"""The columns that rows have beside their groups."""
_HALF = 32
"""Bits. Sums of nano-dollars are kept in halves, which do not exceed SQLite's integers."""
_HOURS = (
    f"SELECT hour, tenant, key_id, model, backend, user_agent, purpose, reason, {', '.join(_SUMS)}, "
    "cost_high, cost_low FROM hours WHERE {where}"
)
_MONTHS = (
    "SELECT CAST(created AS INTEGER) AS hour, tenant, key_id, model, '' AS backend, '' AS user_agent, purpose, "
    f"reason, {', '.join(_SUMS)}, cost_nanodollars >> {_HALF} AS cost_high, "
    f"cost_nanodollars & {2**_HALF - 1} AS cost_low FROM months WHERE {{where}}"
)


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """What counts: from the hour of ``since`` to the end of that before ``until`` (Unix time), and of whom."""

    since: float
    until: float
    equal: tuple[tuple[Group, str], ...] = ()


def read_usage(
    path: Path, where: UsageFilter, by: Sequence[Group] = (), interval: Interval | None = None
) -> list[dict[str, Any]]:
    """A row for each group and interval that has any requests or charges, the dearest first; in order of time where
    there is an ``interval``. ``cost_nanodollars`` is exact. Raises ``sqlite3.Error``."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)) as database:
        database.row_factory = sqlite3.Row
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        parts = [query for name, query in (("hours", _HOURS), ("months", _MONTHS)) if name in tables]
        if not parts:
            return []
        found = database.execute(_query(parts, where, by, interval), _parameters(where)).fetchall()
    rows = [_row(dict(row)) for row in found]
    if interval is not None:
        return sorted(rows, key=lambda row: (row["start"], -row["cost_nanodollars"], -row["requests"]))
    return sorted(rows, key=lambda row: (-row["cost_nanodollars"], -row["requests"], *map(row.get, by)))


def _query(parts: Sequence[str], where: UsageFilter, by: Sequence[Group], interval: Interval | None) -> str:
    names = [
        *([f"{_INTERVALS[interval]} AS start"] if interval else []),
        *(f"{_COLUMNS[g]} AS {g}" for g in by),
    ]
    columns = [*names, *(f"sum({name}) AS {name}" for name in (*_SUMS, "cost_high", "cost_low"))]
    groups = [str(number) for number in range(1, len(names) + 1)]
    conditions = " AND ".join(["{hour} >= :since AND {hour} < :until", *_conditions(where)])
    union = " UNION ALL ".join(
        part.format(where=conditions.format(hour="hour" if part is _HOURS else "created")) for part in parts
    )
    if any(group in ("backend", "user_agent") for group, _ in where.equal):
        union = (
            parts[0].format(where=conditions.format(hour="hour"))
            if parts[0] is _HOURS
            else f"{union} AND false"
        )
    grouping = f" GROUP BY {', '.join(groups)}" if groups else " HAVING count(*) > 0"
    return f"SELECT {', '.join(columns)} FROM ({union}){grouping}"


def _conditions(where: UsageFilter) -> list[str]:
    return [f"{_COLUMNS[group]} = :{group}" for group, _ in where.equal]


def _parameters(where: UsageFilter) -> dict[str, Any]:
    since, until = int(where.since // HOUR * HOUR), -int(-where.until // HOUR * HOUR)
    return {"since": since, "until": until, **dict(where.equal)}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    high, low = row.pop("cost_high"), row.pop("cost_low")
    return {**row, "cost_nanodollars": (high << _HALF) + low}
