"""Retention: whole months of the ledger summed up, exactly, in a table of their own, and their rows deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

KEYS = ("tenant", "key_id", "model", "purpose", "reason")
COUNTS = ("requests", "errors", "refused")
SUMS = (
    *("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens"),
    "cost_nanodollars",
)
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS months (
    created REAL NOT NULL,
    {", ".join(f"{name} TEXT NOT NULL" for name in KEYS)},
    {", ".join(f"{name} INTEGER NOT NULL" for name in (*COUNTS, *SUMS))}
)
"""
"""``created`` is when the month begins. One that holds more than SQLite's integers has several rows."""
_OLDEST = """
SELECT min(created) FROM (SELECT min(created) AS created FROM requests UNION ALL SELECT min(created) FROM spendings)
"""
_LARGEST = 2**62
_HALF = 32
"""Bits. SQLite's sum() of integers fails beyond 63: halves are summed separately."""


def roll_up(path: Path, rows: str, before: float) -> int:
    """Roll up the months of UTC that ended before ``before`` (Unix time). Returns how many requests were in them.

    ``rows`` is a query for the ledger's rows, with the columns ``created``, ``KEYS``, ``COUNTS`` and ``SUMS``, and the
    parameter ``since``. Each month is one transaction. Raises ``sqlite3.Error``.
    """
    found = 0
    with closing(sqlite3.connect(path, timeout=30)) as database:
        database.execute(_SCHEMA)
        while True:
            (created,) = database.execute(_OLDEST).fetchone()
            if created is None:
                return found
            begins, ends = month_of(created)
            if ends > before:
                return found
            found += _month(database, rows, begins, ends)


def month_of(created: float) -> tuple[float, float]:
    """When the month of UTC begins and ends, in Unix time."""
    at = datetime.fromtimestamp(created, UTC)
    begins = datetime(at.year, at.month, 1, tzinfo=UTC)
    ends = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    return begins.timestamp(), ends.timestamp()


def _month(database: sqlite3.Connection, rows: str, begins: float, ends: float) -> int:
    halves = ", ".join(f"sum({name} >> {_HALF}), sum({name} & {2**_HALF - 1})" for name in SUMS)
    counts = ", ".join(f"sum({name})" for name in COUNTS)
    keys = ", ".join(KEYS)
    query = f"SELECT {keys}, {counts}, {halves} FROM ({rows}) WHERE created < :ends GROUP BY {keys}"
    insert = f"INSERT INTO months VALUES ({', '.join('?' * (1 + len(KEYS) + len(COUNTS) + len(SUMS)))})"
    with database:
        database.execute("BEGIN IMMEDIATE")
        for row in database.execute(query, {"since": begins, "ends": ends}).fetchall():
            sums = [
                (high << _HALF) + low
                for high, low in zip(*[iter(row[len(KEYS) + len(COUNTS) :])] * 2, strict=True)
            ]
            counted = row[: len(KEYS) + len(COUNTS)]
            for part in _parts(sums):
                database.execute(insert, [begins, *counted, *part])
                counted = [*row[: len(KEYS)], *[0] * len(COUNTS)]
        database.execute("DELETE FROM spendings WHERE created < ?", [ends])
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'hours'").fetchone():
            database.execute("DELETE FROM hours WHERE hour < ?", [ends])
        return database.execute("DELETE FROM requests WHERE created < ?", [ends]).rowcount


def _parts(sums: list[int]) -> Iterator[list[int]]:
    """Sums in parts that SQLite's integers hold."""
    while True:
        part = [min(one, _LARGEST) for one in sums]
        yield part
        sums = [one - taken for one, taken in zip(sums, part, strict=True)]
        if not any(sums):
            return
