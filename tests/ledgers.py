"""Ledgers of both kinds for tests: an SQLite file, and a database of a real PostgreSQL server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.databases.database import Database
from gateway.databases.opening import open_database
from gateway.databases.postgres import PostgresDatabase
from gateway.databases.sqlite import SqliteDatabase
from gateway.policy.schema import LedgerSettings

SQLITE_AND_POSTGRES = ("sqlite", "postgres")


def opened(where: str) -> Database:
    """``where`` is a path, or a URL."""
    if "://" in where:
        return open_database(LedgerSettings(store=where), Path())
    return SqliteDatabase(Path(where))


def told(database: Database) -> str:
    """What ``opened`` takes, in another process."""
    return database._url if isinstance(database, PostgresDatabase) else str(database)


def rows(
    database: Database, query: str = "SELECT * FROM requests ORDER BY request_id"
) -> list[dict[str, Any]]:
    if not database.exists():
        return []
    with database.reading() as reader:
        return reader.rows(query, {})


def sums(database: Database, table: str = "hours") -> dict[tuple[Any, ...], tuple[int, int, int]]:
    """Of each start and reason: requests, prompt tokens and nano-dollars."""
    query = (
        f"SELECT start, reason, sum(requests) AS requests, sum(prompt_tokens) AS tokens, sum(cost_high) AS high, "
        f"sum(cost_low) AS low FROM {table} GROUP BY start, reason"
    )
    return {
        (row["start"], row["reason"]): (row["requests"], row["tokens"], (row["high"] << 32) + row["low"])
        for row in rows(database, query)
    }
