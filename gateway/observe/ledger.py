"""The ledger: one row for every request and what it cost, in an SQLite file that all workers share."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from gateway.metering.bill import NOTHING, Bill, Charge
from gateway.observe.batch_writer import BatchWriter, TryAgain
from gateway.observe.ledger_schema import TO_THIS, VERSION, statements
from gateway.private import private_file, private_folder
from gateway.types import Call, Principal

RETRY = 1.0
"""Seconds after which a failed write is tried again."""
BUSY_TIMEOUT = 2.0

_LONGEST_NAME = 256
_COLUMNS = 23
_ROW = f"({', '.join('?' * _COLUMNS)})"
_AT_ONCE = (256, 64, 16, 4, 1)
"""Rows in one statement. SQLite releases the GIL for each statement; getting it back from a busy event loop costs both
threads more than a row does."""
_INSERT = {count: f"INSERT OR IGNORE INTO requests VALUES {', '.join([_ROW] * count)}" for count in _AT_ONCE}
_SPENDING_COLUMNS = 19
_INSERT_SPENDING = f"INSERT OR IGNORE INTO spendings VALUES ({', '.join('?' * _SPENDING_COLUMNS)})"

Row = tuple[str | int | float | None, ...]

log = logging.getLogger(__name__)


class Ledger:
    """Rows are queued by ``record`` and written in batches (``gateway.observe.batch_writer``).

    When the disk fails or falls far behind, rows are lost, not requests. One for each process and file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._table = _Table(path)
        self._writer = BatchWriter("ledger", self._write)

    @property
    def lost(self) -> int:
        """Requests that were not recorded."""
        return self._writer.lost

    @property
    def waiting(self) -> int:
        """Rows that are not yet written."""
        return self._writer.backlog

    @property
    def closed(self) -> bool:
        return self._writer.closed

    def record(self, call: Call, bill: Bill, status: int, error: str | None = None) -> None:
        """Record a request that has ended, with its last attempt. Repeating it changes nothing.

        ``error`` is why it failed (``gateway.observe.outcome.reason_of``).
        """
        principal, candidate = call.principal, call.candidate
        answer = bill.answer
        used = answer.upstream.usage if answer is not None else NOTHING
        self._add(
            (
                call.request_id,
                call.receipt.created,
                principal.tenant,
                principal.key_id,
                principal.tier,
                call.request.model[:_LONGEST_NAME],
                candidate.model if candidate else None,
                candidate.target.backend if candidate else None,
                candidate.target.model if candidate else None,
                status,
                call.request.stream,
                used.prompt,
                used.cached,
                used.completion,
                used.reasoning,
                answer.nanodollars if answer is not None else 0,
                answer is not None and answer.upstream.estimated,
                round(time.perf_counter() - call.started, 6),
                call.receipt.attempts or len(bill.charges),
                error,
                used.cache_write,
                used.cache_write_1h,
                call.user_agent,
            )
        )
        if others := bill.others:
            self.record_charges(call.request_id, call.receipt.created, principal, others, call.user_agent)

    def record_charges(
        self,
        request_id: str,
        created: float,
        principal: Principal,
        charges: Iterable[Charge],
        user_agent: str = "",
    ) -> None:
        """Record charges of ``principal`` other than answers, on account of a request. ``created`` is Unix time."""
        for number, (upstream, nanodollars) in enumerate(charges):
            used = upstream.usage
            self._add(
                (
                    request_id,
                    number,
                    created,
                    principal.tenant,
                    principal.key_id,
                    principal.tier,
                    upstream.purpose,
                    upstream.model[:_LONGEST_NAME],
                    upstream.target.backend,
                    upstream.target.model,
                    used.prompt,
                    used.cached,
                    used.completion,
                    used.reasoning,
                    nanodollars,
                    upstream.estimated,
                    used.cache_write,
                    used.cache_write_1h,
                    user_agent,
                )
            )

    def record_refusal(self, request_id: str, principal: Principal, status: int, error: str) -> None:
        """Record a request that was refused before its body was read."""
        who = (principal.tenant, principal.key_id, principal.tier)
        nothing = (None, None, None, status, False, 0, 0, 0, 0, 0, False, 0.0, 0, error, 0, 0, "")
        self._add((request_id, time.time(), *who, "", *nothing))

    def wait_drained(self, timeout: float) -> bool:
        """Block until no row is waiting to be written; False if it takes longer than ``timeout`` seconds."""
        return self._writer.flush(timeout)

    async def aclose(self) -> None:
        """Write what is still waiting, within a few seconds."""
        await asyncio.to_thread(self._writer.close)
        if self._writer.waiting():
            log.error("%d requests are missing from the ledger '%s'", self.lost, self.path)

    def _add(self, row: Row) -> None:
        if not self._writer.add(row):
            message = "the ledger '%s' falls behind: %d requests are not recorded so far"
            self._writer.warn(log, message, self.path, self.lost)

    def _write(self, rows: list[Row]) -> None:
        try:
            self._table.insert(rows)
        except (sqlite3.Error, OSError) as error:
            self._table.close()
            message = "the ledger '%s' cannot be written (%s); it is tried again, %d requests wait"
            self._writer.warn(log, message, self.path, error, len(self._writer.waiting()))
            raise TryAgain(RETRY) from error
        except Exception as error:
            # Such as a count that is too large for SQLite: the rest of the batch must not fail with it for ever.
            log.error(
                "a row of the ledger '%s' cannot be written: %s: %s", self.path, type(error).__name__, error
            )
            for row in rows:
                self._insert_alone(row)

    def _insert_alone(self, row: Row) -> None:
        try:
            self._table.insert([row])
        except Exception:
            self._writer.lost += 1


class _Table:
    """The file, for one thread: opened on demand, and reopened when it was replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._file = (0, 0)

    def insert(self, rows: list[Row]) -> None:
        """Raises ``sqlite3.Error`` or ``OSError``; then nothing was written."""
        if self._database is not None and self._identity() != self._file:
            self.close()
        if self._database is None:
            self._database = self._opened()
            self._file = self._identity()
        spendings = [row for row in rows if len(row) == _SPENDING_COLUMNS]
        if spendings:
            rows = [row for row in rows if len(row) != _SPENDING_COLUMNS]
        with self._database:
            self._database.executemany(_INSERT_SPENDING, spendings)
            start = 0
            for count in _AT_ONCE:
                while len(rows) - start >= count:
                    values = chain.from_iterable(rows[start : start + count])
                    self._database.execute(_INSERT[count], [*values])
                    start += count

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _opened(self) -> sqlite3.Connection:
        private_folder(self._path.parent)
        private_file(self._path)
        for name in (f"{self._path}-wal", f"{self._path}-shm"):
            # SQLite creates them with the ledger's mode; these are from a version that let others read.
            if os.path.exists(name):
                private_file(Path(name))
        database = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise sqlite3.DatabaseError(f"its version is {version}, this program knows {VERSION}")
            if version < VERSION:
                _migrate(database)
        except BaseException:
            database.close()
            raise
        return database

    def _identity(self) -> tuple[int, int]:
        try:
            stat = os.stat(self._path)
        except FileNotFoundError:
            return (0, 0)
        return (stat.st_dev, stat.st_ino)


def _migrate(database: sqlite3.Connection) -> None:
    """Migrate the file to this version; another worker may be about to do the same."""
    database.execute("BEGIN IMMEDIATE")
    try:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        for statement in statements(TO_THIS.get(version, "")):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        database.rollback()
        raise
    database.commit()
