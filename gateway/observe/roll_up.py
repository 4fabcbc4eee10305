"""Retention: whole months of the ledger summed up, exactly, in a table of their own, and their rows deleted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from gateway.databases.database import Change, Conflict, Database
from gateway.databases.tables import COUNTS, HALF, TOKENS
from gateway.observe.usage_rows import ROWS

KEYS = ("tenant", "key_id", "model", "purpose", "reason")
SUMS = (*TOKENS, "cost_nanodollars")
_OLDEST = """
SELECT min(created) AS created
FROM (SELECT min(created) AS created FROM requests UNION ALL SELECT min(created) FROM spendings) AS oldest
"""
_LARGEST = 2**62
_ATTEMPTS = 5


def roll_up(database: Database, before: float) -> int:
    """Roll up the months of UTC that ended before ``before`` (Unix time). Returns how many requests were in them.

    Each month is one transaction. Raises ``DatabaseError``.
    """
    found = 0
    while (month := _next_month(database, before)) is not None:
        found += month
    return found


def _next_month(database: Database, before: float) -> int | None:
    """How many requests were in it; None where there is no more to roll up."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with database.changing() as change:
                (oldest,) = change.rows(_OLDEST, {})
                if oldest["created"] is None:
                    return None
                begins, ends = month_of(oldest["created"])
                return _month(change, begins, ends) if ends <= before else None
        except Conflict:
            if attempt == _ATTEMPTS:
                raise
    return None


def month_of(created: float) -> tuple[float, float]:
    """When the month of UTC begins and ends, in Unix time."""
    at = datetime.fromtimestamp(created, UTC)
    begins = datetime(at.year, at.month, 1, tzinfo=UTC)
    ends = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    return begins.timestamp(), ends.timestamp()


def _month(change: Change, begins: float, ends: float) -> int:
    halves = ", ".join(
        f"sum({name} >> {HALF}) AS {name}_high, sum({name} & {2**HALF - 1}) AS {name}_low" for name in SUMS
    )
    counts = ", ".join(f"sum({name}) AS {name}" for name in COUNTS)
    keys = ", ".join(KEYS)
    query = f"SELECT {keys}, {counts}, {halves} FROM ({ROWS}) AS found WHERE created < :ends GROUP BY {keys}"
    columns = ("created", *KEYS, *COUNTS, *SUMS)
    insert = f"INSERT INTO months ({', '.join(columns)}) VALUES ({', '.join(f':{name}' for name in columns)})"
    for row in change.rows(query, {"since": begins, "ends": ends}):
        sums = [(row[f"{name}_high"] << HALF) + row[f"{name}_low"] for name in SUMS]
        counted = {name: row[name] for name in COUNTS}
        for part in _parts(sums):
            told = {name: row[name] for name in KEYS} | counted | dict(zip(SUMS, part, strict=True))
            change.run(insert, {"created": begins, **told})
            counted = dict.fromkeys(COUNTS, 0)
    change.run("DELETE FROM spendings WHERE created < :ends", {"ends": ends})
    for table in ("hours", "days"):
        change.run(f"DELETE FROM {table} WHERE start < :ends", {"ends": ends})
    return change.run("DELETE FROM requests WHERE created < :ends", {"ends": ends})


def _parts(sums: list[int]) -> Iterator[list[int]]:
    """Sums in parts that 63 bits hold."""
    while True:
        part = [min(one, _LARGEST) for one in sums]
        yield part
        sums = [one - taken for one, taken in zip(sums, part, strict=True)]
        if not any(sums):
            return
