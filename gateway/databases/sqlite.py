"""The ledger in an SQLite file that all workers of one machine share."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway.databases.database import DatabaseError, Found, Row, within
from gateway.databases.migrations import log_migration, too_new
from gateway.databases.sqlite_schema import TO_THIS
from gateway.databases.tables import REQUESTS, SPENDINGS, SUM_KEYS, SUMMED, sums_of
from gateway.private import private_file, private_folder, take_from_others

BUSY_TIMEOUT = 2.0
PATIENCE = 5.0
"""Seconds that readers wait for a file that is locked."""
CHANGE_PATIENCE = 30.0

_AT_ONCE = (256, 64, 16, 4, 1)
"""Rows in one statement. SQLite releases the GIL for each statement; getting it back from a busy event loop costs both
threads more than a row does."""


_LARGEST = 2**63 - 1


def _values(count: int, columns: int) -> str:
    return ", ".join([f"({', '.join('?' * columns)})"] * count)


_INSERT = {
    (table, count): f"INSERT OR IGNORE INTO {table} VALUES {_values(count, len(columns))}"
    for table, columns in (("requests", REQUESTS), ("spendings", SPENDINGS))
    for count in _AT_ONCE
}
_ADD = {
    (table, count): f"INSERT INTO {table} VALUES {_values(count, 1 + len(SUM_KEYS) + len(SUMMED))} "
    f"ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in SUMMED)}"
    for table in ("hours", "days")
    for count in _AT_ONCE
}


class SqliteDatabase:
    """A file at ``path``, which is made when something is first written.

    ``scripts`` lead from each earlier version of its tables to the one they should have; the ledger's, without them.
    """

    def __init__(self, path: Path, scripts: Mapping[int, str] = TO_THIS) -> None:
        self.path = path
        self._scripts = scripts

    def __str__(self) -> str:
        return str(self.path)

    def exists(self) -> bool:
        with _translated():
            return self.path.exists()

    @contextmanager
    def reading(self) -> Iterator[_Reader]:
        with _translated():
            connection = _reading(self.path)
        with closing(connection):
            yield _Reader(connection)

    @contextmanager
    def changing(self) -> Iterator[_Change]:
        with _translated():
            connection = _opened(self.path, CHANGE_PATIENCE, self._scripts)
        with closing(connection), _translated(), connection:
            connection.execute("BEGIN IMMEDIATE")
            yield _Change(connection)

    def now(self) -> str:
        return "((julianday('now') - 2440587.5) * 86400.0)"

    def writer(self) -> _Writer:
        return _Writer(self.path)

    def day(self, created: str) -> str:
        return f"strftime('%Y-%m-%d', {created}, 'unixepoch')"

    def second(self, created: str) -> str:
        return f"CAST({created} AS INTEGER)"

    def month(self, start: str) -> str:
        return f"unixepoch({start}, 'unixepoch', 'start of month')"


class _Reader:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.row_factory = sqlite3.Row

    def rows(self, query: str, parameters: Mapping[str, Any]) -> list[Found]:
        with _translated():
            return [dict(row) for row in self._connection.execute(query, parameters)]

    def rows_within(self, query: str, parameters: Mapping[str, Any], column: str, size: int) -> list[Found]:
        with _translated(), closing(self._connection.execute(query, parameters)) as cursor:
            return within(map(dict, cursor), column, size)

    def tables(self) -> frozenset[str]:
        found = self.rows("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')", {})
        return frozenset(row["name"] for row in found)

    def columns(self, table: str) -> frozenset[str]:
        return frozenset(row["name"] for row in self.rows(f"PRAGMA table_info({table})", {}))


class _Change(_Reader):
    def run(self, statement: str, parameters: Mapping[str, Any]) -> int:
        with _translated():
            return self._connection.execute(statement, parameters).rowcount

    def run_many(self, statement: str, parameters: Sequence[Mapping[str, Any]]) -> None:
        with _translated():
            self._connection.executemany(statement, parameters)


class _Repeated(Exception):
    """Some of the rows are there already."""


class _Writer:
    """The file is opened anew when it was replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._file = (0, 0)

    def insert(self, requests: Sequence[Row], spendings: Sequence[Row]) -> None:
        with _translated():
            if self._connection is not None and self._identity() != self._file:
                self.close()
            if self._connection is None:
                self._connection = _opened(self._path, BUSY_TIMEOUT, TO_THIS)
                self._file = self._identity()
            with self._connection as connection:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    new = (
                        _insert(connection, "requests", requests),
                        _insert(connection, "spendings", spendings),
                    )
                except _Repeated:
                    connection.rollback()
                    connection.execute("BEGIN IMMEDIATE")
                    new = (
                        [row for row in requests if _insert_alone(connection, "requests", row)],
                        [row for row in spendings if _insert_alone(connection, "spendings", row)],
                    )
                for table, sums in zip(("hours", "days"), sums_of(*new), strict=True):
                    for chunk in _chunks(sums):
                        connection.execute(
                            _ADD[table, len(chunk)], [_fitting(value) for value in chain.from_iterable(chunk)]
                        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _identity(self) -> tuple[int, int]:
        try:
            stat = os.stat(self._path)
        except FileNotFoundError:
            return (0, 0)
        return (stat.st_dev, stat.st_ino)


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[Row]) -> Sequence[Row]:
    inserted = 0
    for chunk in _chunks(rows):
        inserted += connection.execute(_INSERT[table, len(chunk)], [*chain.from_iterable(chunk)]).rowcount
    if inserted != len(rows):
        raise _Repeated
    return rows


def _insert_alone(connection: sqlite3.Connection, table: str, row: Row) -> bool:
    """Whether it is new."""
    return connection.execute(_INSERT[table, 1], row).rowcount == 1


def _fitting(value: str | int | float | None) -> str | int | float | None:
    """A sum beyond SQLite's integers as a float: what SQLite's own addition makes of it."""
    return float(value) if isinstance(value, int) and value > _LARGEST else value


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start = 0
    for count in _AT_ONCE:
        while len(rows) - start >= count:
            yield rows[start : start + count]
            start += count


def _reading(path: Path) -> sqlite3.Connection:
    """Also where nothing can be written, as on a backup that is mounted read-only."""
    uri = f"file:{quote(str(path))}?mode=ro"
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=PATIENCE)
        try:
            connection.execute("PRAGMA schema_version").fetchone()
        except BaseException:
            connection.close()
            raise
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise
        try:
            path.open("rb").close()
        except PermissionError:
            raise PermissionError(
                f"user {os.geteuid()} may not read it: run this as its owner, or let this user read it"
            ) from None
        log = Path(f"{path}-wal")
        if log.exists() and log.stat().st_size:
            raise PermissionError(
                f"a part of it is in {log.name}, which SQLite reads only where it can write beside it: copy both files "
                "into a folder of your own, and name the copy"
            ) from error
        # SQLite wants to make its index of changes beside it; without a log of them there is none to make.
        return sqlite3.connect(f"{uri}&immutable=1", uri=True, timeout=PATIENCE)
    return connection


def _opened(path: Path, patience: float, scripts: Mapping[int, str]) -> sqlite3.Connection:
    private_folder(path.parent)
    private_file(path)
    for name in (f"{path}-wal", f"{path}-shm"):
        # SQLite makes them with the ledger's mode, and removes them with the last connection, another's at any moment;
        # these are from a version that let others read.
        take_from_others(Path(name))
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        known = len(scripts)
        if version > known:
            raise sqlite3.DatabaseError(too_new(version, known))
        if version < known:
            log_migration(path, _migrate(connection, scripts), known)
            # Where another did it meanwhile, this connection knows the tables as they were, and an INSERT that names no
            # columns does not look again.
            connection.execute("SELECT 1 FROM sqlite_master").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, scripts: Mapping[int, str]) -> int:
    """Migrate the file to this version, and tell its own before; 0 too where another worker has just done it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for statement in scripts.get(version, "").split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(scripts)}")
    except BaseException:
        connection.rollback()
        raise
    connection.commit()
    return int(version) if version < len(scripts) else 0


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise DatabaseError(str(error)) from error
