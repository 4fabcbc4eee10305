"""What the semantic cache found, by day: in shadow mode what it would have served, and what that would have spared.

Counts in an SQLite file of their own that all workers of a machine share: a row for each day, tenant, model and
result, and none for single requests.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from gateway.metering.bill import Bill
from gateway.observe.batch_writer import BatchWriter, TryAgain
from gateway.private import private_file, private_folder
from gateway.types import Call

FILE = "cache_days.sqlite"
"""In the state folder."""
HIT = "hit"
PAUSE = 1.0
"""Seconds in which look-ups are summed up before they are written."""
RETRY = 1.0
BUSY_TIMEOUT = 2.0
DAY = 86_400

_SCHEMA = """
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
) WITHOUT ROWID
"""
_SUMS = ("requests", "tokens", "nanodollars")
_ADD = "INSERT INTO semantic_days VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET " + ", ".join(
    f"{name} = {name} + excluded.{name}" for name in _SUMS
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
        self.path = path
        self._file: sqlite3.Connection | None = None
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

    def wait_written(self, timeout: float) -> bool:
        """Block until nothing waits to be written; False if it takes longer than ``timeout`` seconds."""
        return self._writer.flush(timeout)

    async def aclose(self) -> None:
        """Write what is still waiting, within a few seconds."""
        await asyncio.to_thread(self._writer.close)

    def _write(self, rows: list[tuple[Looked, int, int]]) -> None:
        sums: dict[Looked, Counter[str]] = {}
        for looked, tokens, nanodollars in rows:
            sums.setdefault(looked, Counter()).update(requests=1, tokens=tokens, nanodollars=nanodollars)
        try:
            if self._file is None or not self.path.exists():
                self._close()
                self._file = _opened(self.path)
            with self._file as file:
                file.executemany(
                    _ADD, [(*looked, *(one[name] for name in _SUMS)) for looked, one in sums.items()]
                )
        except (sqlite3.Error, OSError) as error:
            self._close()
            self._writer.warn(log, "'%s' cannot be written (%s); it is tried again", self.path, error)
            raise TryAgain(RETRY) from error

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _opened(path: Path) -> sqlite3.Connection:
    private_folder(path.parent)
    private_file(path)
    file = sqlite3.connect(path, timeout=BUSY_TIMEOUT, check_same_thread=False)
    try:
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = NORMAL")
        file.execute(_SCHEMA)
    except BaseException:
        file.close()
        raise
    return file


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
    """By day, from that of ``since`` to that of ``until`` (Unix time; now). Raises ``sqlite3.Error``."""
    if not path.exists():
        return []
    condition = " AND tenant = :tenant" if tenant is not None else ""
    name = "''" if by is None else by
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)) as file:
        if not file.execute("SELECT 1 FROM sqlite_master WHERE name = 'semantic_days'").fetchone():
            return []  # a new file, whose table is just being made
        found = file.execute(
            f"SELECT date(day, 'unixepoch'), mode, {name} AS name, result, sum(requests), sum(tokens), "
            "sum(nanodollars) FROM semantic_days WHERE day >= :since AND day <= :until"
            f"{condition} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 5 DESC, 4",
            {
                "since": int(since // DAY * DAY),
                "until": int(time.time() if until is None else until),
                "tenant": tenant,
            },
        ).fetchall()
    return _days(found)


def _days(found: Sequence[tuple[Any, ...]]) -> list[CacheDay]:
    groups: dict[tuple[str, str, str], list[tuple[str, int, int, int]]] = {}
    for day, mode, name, *rest in found:
        groups.setdefault((day, mode, name), []).append((rest[0], rest[1], rest[2], rest[3]))
    return [
        CacheDay(
            *key,
            lookups=sum(requests for _, requests, _, _ in rows),
            hits=sum(requests for result, requests, _, _ in rows if result == HIT),
            hit_tokens=sum(tokens for result, _, tokens, _ in rows if result == HIT),
            hit_nanodollars=sum(cost for result, _, _, cost in rows if result == HIT),
            refused={result: requests for result, requests, _, _ in rows if result != HIT},
        )
        for key, rows in groups.items()
    ]
