"""What the semantic cache found, by day: in shadow mode what it would have served, and what that would have spared.

Counts in an SQLite file of their own that all workers of a machine share, wherever the ledger is: a row for each day,
tenant, model and result, and none for single requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from gateway.databases.database import DatabaseError, Found
from gateway.databases.migrations import Migrations
from gateway.databases.sqlite import SqliteDatabase
from gateway.metering.bill import Bill
from gateway.observe.batch_writer import BatchWriter, TryAgain
from gateway.types import Call

FILE = "cache_days.sqlite"
"""In the state folder."""
HIT = "hit"
PAUSE = 1.0
"""Seconds in which look-ups are summed up before they are written."""
RETRY = 1.0
DAY = 86_400

_COLUMNS = ("day", "tenant", "model", "mode", "result", "requests", "tokens", "nanodollars")
_SUMS = _COLUMNS[5:]
TABLES = Migrations(
    "cache_days",
    (
        (
            """
CREATE TABLE IF NOT EXISTS semantic_days (
    day INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    mode TEXT NOT NULL,
    result TEXT NOT NULL,
    requests INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    nanodollars INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, model, mode, result)
) WITHOUT ROWID""",
        ),
    ),
)
"""Files had this table before they had a version."""
_ADD = (
    f"INSERT INTO semantic_days VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)
)

log = logging.getLogger(__name__)

Mode = Literal["on", "shadow"]


class Looked(NamedTuple):
    """What is counted together."""

    day: int
    """When it began, in Unix time (UTC)."""
    tenant: str
    model: str
    mode: Mode
    result: str
    """``hit``, or why the cache served nothing, as in the receipt's ``cache.semantic``."""


class CacheDays:
    """Rows are queued by ``record`` and summed up in a thread. When the disk fails, counts are lost, not requests."""

    def __init__(self, path: Path) -> None:
        self._database = _database(path)
        self._writer: BatchWriter[tuple[Looked, int, int]] = BatchWriter(
            "cache_days", self._write, pause=PAUSE
        )

    def record(self, call: Call, bill: Bill) -> None:
        """Count a request that has ended, where the semantic cache was asked."""
        notes = call.receipt.noted.get("cache")
        if not notes or ("semantic" not in notes and notes.get("result") != "semantic"):
            return
        shadow = "would_serve" in notes
        hit = notes["would_serve"] if shadow else notes.get("result") == "semantic"
        looked = Looked(
            int(call.receipt.created) // DAY * DAY,
            call.principal.tenant,
            call.model,
            "shadow" if shadow else "on",
            HIT if hit else str(notes.get("semantic")),
        )
        answer = bill.answer
        used = answer.upstream.usage if answer is not None else None
        tokens = used.prompt + used.completion if used is not None else 0
        self._writer.add((looked, tokens, answer.nanodollars if answer is not None else 0))

    async def aclose(self) -> None:
        """Write what is still waiting, within a few seconds."""
        await asyncio.to_thread(self._writer.close)

    def _write(self, rows: list[tuple[Looked, int, int]]) -> None:
        sums: dict[Looked, Counter[str]] = {}
        for looked, tokens, nanodollars in rows:
            sums.setdefault(looked, Counter()).update(requests=1, tokens=tokens, nanodollars=nanodollars)
        try:
            with self._database.changing() as change:
                change.run_many(_ADD, [looked._asdict() | one for looked, one in sums.items()])
        except DatabaseError as error:
            self._writer.warn(log, "'%s' cannot be written (%s); it is tried again", self._database, error)
            raise TryAgain(RETRY) from error


@dataclass(frozen=True, slots=True)
class CacheDay:
    """The look-ups of one day, mode and, where asked for, tenant or model."""

    day: str
    """As ``2027-01-31``, UTC's."""
    mode: str
    name: str
    """The tenant or model; empty where all are together."""
    lookups: int
    hits: int
    """What was served, or in shadow mode would have been."""
    hit_tokens: int
    hit_nanodollars: int
    """What the requests took that would have been served. Nothing for those that were."""
    refused: dict[str, int]
    """Look-ups that served nothing, by reason, the most frequent first."""


def read_cache_days(
    path: Path,
    *,
    since: float,
    until: float | None = None,
    by: Literal["tenant", "model"] | None = None,
    tenant: str | None = None,
) -> list[CacheDay]:
    """By day, from that of ``since`` to that of ``until`` (Unix time; now). Raises ``DatabaseError``."""
    database = _database(path)
    if not database.exists():
        return []
    with database.reading() as reader:
        if "semantic_days" not in reader.tables():
            return []  # a new file, whose table is just being made
        name = "''" if by is None else by
        found = reader.rows(
            f"SELECT {database.day('day')} AS date, mode, {name} AS name, result, sum(requests) AS requests, "
            "sum(tokens) AS tokens, sum(nanodollars) AS nanodollars FROM semantic_days "
            f"WHERE day >= :since AND day <= :until{'' if tenant is None else ' AND tenant = :tenant'} "
            "GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 5 DESC, 4",
            {
                "since": int(since // DAY * DAY),
                "until": int(time.time() if until is None else until),
                "tenant": tenant,
            },
        )
    groups: dict[tuple[str, str, str], list[Found]] = {}
    for row in found:
        groups.setdefault((row["date"], row["mode"], row["name"]), []).append(row)
    return [_day(*key, rows) for key, rows in groups.items()]


def _day(day: str, mode: str, name: str, rows: Sequence[Found]) -> CacheDay:
    hit: Found = next((row for row in rows if row["result"] == HIT), {})
    return CacheDay(
        *(day, mode, name),
        lookups=sum(row["requests"] for row in rows),
        hits=hit.get("requests", 0),
        hit_tokens=hit.get("tokens", 0),
        hit_nanodollars=hit.get("nanodollars", 0),
        refused={row["result"]: row["requests"] for row in rows if row["result"] != HIT},
    )


def _database(path: Path) -> SqliteDatabase:
    return SqliteDatabase(path, TABLES.scripts)
