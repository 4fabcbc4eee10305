"""What callers have used in this day and month, summed from the ledger: for counters that start with the process."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from gateway.metering.window_usage import WindowUsage

_HALF = 32
"""Bits. SQLite's sum() of whole numbers fails beyond 63: halves are added up apart, and put together here."""
_TOKENS, _COST = "(prompt_tokens + completion_tokens)", "cost_nanodollars"
_QUERY = """
SELECT tenant, key_id, tier, created >= :day AS today, {sums}
FROM {table} WHERE created >= :month GROUP BY tenant, key_id, tier, today
"""


def read_window_usage(path: Path, now: float) -> list[WindowUsage]:
    """One for each caller and window (the UTC day and month of ``now``, Unix time) with any usage.

    Raises ``sqlite3.Error`` where the ledger cannot be read; a missing one is empty.
    """
    if not path.exists():
        return []
    at = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    begins = {"day": at.timestamp(), "month": at.replace(day=1).timestamp()}
    sums = ", ".join(f"sum({what} >> {_HALF}), sum({what} & {2**_HALF - 1})" for what in (_TOKENS, _COST))
    months: dict[tuple[str, str, str], tuple[int, int]] = {}
    found: list[WindowUsage] = []
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)) as database:
        # Since version 4 charges other than answers have rows of their own.
        views = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'view'")}
        query = _QUERY.format(sums=sums, table="spent" if "spent" in views else "requests")
        for tenant, key_id, tier, today, *halves in database.execute(query, begins):
            tokens, cost = (
                (high << _HALF) + low for high, low in zip(halves[::2], halves[1::2], strict=True)
            )
            who = (tenant, key_id, tier)
            before = months.get(who, (0, 0))
            months[who] = (before[0] + tokens, before[1] + cost)
            if today:
                found.append(WindowUsage(*who, "day", tokens, cost))
    return found + [WindowUsage(*who, "month", *sums) for who, sums in months.items()]
