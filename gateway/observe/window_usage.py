"""What callers have used in this day and month, summed from the ledger: for counters that start with the process."""

from __future__ import annotations

from datetime import UTC, datetime

from gateway.databases.database import Database
from gateway.databases.tables import HALF
from gateway.metering.window_usage import WindowUsage

_TOKENS, _COST = "(prompt_tokens + completion_tokens)", "cost_nanodollars"
_SUMS = ", ".join(
    f"sum({what} >> {HALF}) AS {name}_high, sum({what} & {2**HALF - 1}) AS {name}_low"
    for name, what in (("tokens", _TOKENS), ("cost", _COST))
)
_QUERY = f"""
SELECT tenant, key_id, tier, created >= :day AS today, {_SUMS}
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
        rows = reader.rows(_QUERY.format(table="spent" if "spent" in tables else "requests"), begins)
    for row in rows:
        tokens, cost = ((row[f"{name}_high"] << HALF) + row[f"{name}_low"] for name in ("tokens", "cost"))
        who = (row["tenant"], row["key_id"], row["tier"])
        before = months.get(who, (0, 0))
        months[who] = (before[0] + tokens, before[1] + cost)
        if row["today"]:
            found.append(WindowUsage(*who, "day", tokens, cost))
    return found + [WindowUsage(*who, "month", *sums) for who, sums in months.items()]
