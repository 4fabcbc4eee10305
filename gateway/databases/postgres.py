"""The ledger on a PostgreSQL server, for several replicas. psycopg comes with the extra ``postgres``.

Each transaction names its schema itself, and no statement is prepared on the server: a pooler in between may hand every
transaction to another connection.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from gateway.databases.database import Conflict, DatabaseError, Found, Row, within
from gateway.databases.migrations import Migrations, log_migration, too_new
from gateway.databases.postgres_schema import LEDGER, SCHEMA
from gateway.databases.tables import REQUESTS, SPENDINGS, SUM_KEYS, SUMMED, Kind, sums_of
from gateway.packages import no_postgres

if TYPE_CHECKING:
    from psycopg import Connection

CONNECT_TIMEOUT = 5
READ_TIMEOUT = 30
WRITE_TIMEOUT = 10
CHANGE_TIMEOUT = 600
"""Seconds after which a statement is given up."""
FETCHED = 8
"""Rows that come at once where they may be long."""
SILENCE = 10
"""Seconds after which a server that acknowledges nothing counts as gone."""

_LOCK = 0x746F6C6C67617465
"""Held by whoever changes the schema ("tollgate")."""
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_KINDS: dict[Kind, str] = {
    "text": "text",
    "integer": "bigint",
    "real": "double precision",
    "boolean": "boolean",
}


class PostgresDatabase:
    """``url`` as libpq has it (https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING);
    ``password`` gives the password where the URL has none, or None for what libpq finds (PGPASSWORD, .pgpass).
    ``tables`` are those that are made there, and changed."""

    def __init__(
        self, url: str, password: Callable[[], str | None] = lambda: None, tables: Migrations = LEDGER
    ) -> None:
        self._url = url
        self._password = password
        self._tables = tables

    def __str__(self) -> str:
        return address(self._url)

    def exists(self) -> bool:
        return True

    @contextmanager
    def reading(self) -> Iterator[_Reader]:
        with closing(self.connect()) as connection, self.transaction(connection, READ_TIMEOUT, "READ ONLY"):
            yield _Reader(self, connection)

    @contextmanager
    def changing(self) -> Iterator[_Change]:
        with closing(self.connect()) as connection:
            self.migrate(connection)
            # With a snapshot what comes in between reading and deleting is neither read nor deleted. It is taken before
            # the lock is had: who must know what the one before changed does without.
            level = "REPEATABLE READ" if self._tables.snapshot else "READ COMMITTED"
            with self.transaction(connection, CHANGE_TIMEOUT, f"ISOLATION LEVEL {level}"):
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [_change_lock(self._tables.name)])
                yield _Change(self, connection)

    def now(self) -> str:
        return "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"

    def writer(self) -> _Writer:
        return _Writer(self)

    def day(self, created: str) -> str:
        return f"to_char(to_timestamp({created}) AT TIME ZONE 'UTC', 'YYYY-MM-DD')"

    def second(self, created: str) -> str:
        return f"CAST(floor({created}) AS BIGINT)"

    def month(self, start: str) -> str:
        month = f"date_trunc('month', to_timestamp({start}) AT TIME ZONE 'UTC')"
        return f"CAST(extract(epoch FROM {month}) AS BIGINT)"

    def connect(self) -> Connection[Found]:
        """Raises ``DatabaseError``."""
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
            from psycopg.rows import dict_row
            from psycopg.types.string import TextLoader
        except ImportError as error:
            raise DatabaseError(no_postgres(error)) from error

        class WholeNumberLoader(TextLoader):
            def load(self, data: Any) -> Any:
                return int(bytes(data))

        with self.translated():
            given: dict[str, Any] = {
                "connect_timeout": CONNECT_TIMEOUT,
                "tcp_user_timeout": SILENCE * 1000,
                "application_name": "tollgate",
                **conninfo_to_dict(self._url),
            }
            if "password" not in given and (password := self._password()) is not None:
                given["password"] = password
            connection = psycopg.connect(
                **given, autocommit=True, prepare_threshold=None, row_factory=dict_row
            )
            # Sums of whole numbers; there are no others here.
            connection.adapters.register_loader("numeric", WholeNumberLoader)
            return connection

    @contextmanager
    def transaction(self, connection: Connection[Found], timeout: float, kind: str = "") -> Iterator[None]:
        with self.translated(), connection.transaction():
            connection.execute(
                (f"SET TRANSACTION {kind}; " if kind else "")
                + f"SET LOCAL search_path TO {SCHEMA}, pg_catalog; SET LOCAL statement_timeout TO '{timeout:g}s'"
            )
            yield

    def migrate(self, connection: Connection[Found]) -> None:
        """Bring the tables to this version; of several processes that start together one does."""
        name = f"{self._tables.name}_version"
        if self._version(connection) == self._tables.version:
            return
        with self.transaction(connection, CHANGE_TIMEOUT):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            version = self._version(connection)
            if version == 0:
                # A role that may not make schemas may be given an empty one.
                connection.execute(
                    f"DO $$ BEGIN IF to_regnamespace('{SCHEMA}') IS NULL THEN CREATE SCHEMA {SCHEMA}; END IF; END $$"
                )
                connection.execute(f"CREATE TABLE {name} (version INTEGER NOT NULL)")
                connection.execute(f"INSERT INTO {name} VALUES (0)")
            for statement in [statement for step in self._tables.steps[version:] for statement in step]:
                connection.execute(statement)
            connection.execute(f"UPDATE {name} SET version = %s", [self._tables.version])
        if version < self._tables.version:
            log_migration(f"{self} ({self._tables.name})", version, self._tables.version)

    def _version(self, connection: Connection[Found]) -> int:
        with self.translated():
            table = f"{SCHEMA}.{self._tables.name}_version"
            # Not to_regclass: within a transaction it may still say what it said before another one made the table.
            there = connection.execute(
                "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = %s", table.split(".")
            )
            if there.fetchone() is None:
                return 0
            found = connection.execute(f"SELECT version FROM {table}").fetchone()
        version = int(found["version"]) if found is not None else 0
        if version > self._tables.version:
            raise DatabaseError(too_new(version, self._tables.version))
        return version

    @contextmanager
    def translated(self) -> Iterator[None]:
        import psycopg
        from psycopg.errors import DeadlockDetected, SerializationFailure

        try:
            yield
        except (DeadlockDetected, SerializationFailure) as error:
            raise Conflict(self._told(error)) from error
        except psycopg.Error as error:
            raise DatabaseError(self._told(error)) from error

    def _told(self, error: Exception) -> str:
        """Its first line, without a password: libpq repeats a URL that it cannot parse."""
        message = str(error).strip() or type(error).__name__
        parts = urlsplit(self._url)
        for secret in (self._url, parts.netloc.rpartition("@")[0].partition(":")[2], parts.query):
            if secret:
                message = message.replace(secret, "…").replace(unquote(secret), "…")
        return message.splitlines()[0]


def _change_lock(name: str) -> int:
    return _LOCK + 1 + zlib.crc32(name.encode())


def address(url: str) -> str:
    """``url`` without its password and options."""
    parts = urlsplit(url)
    who, at, where = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{who.partition(':')[0]}{at}{where}", parts.path, "", ""))


class _Reader:
    def __init__(self, database: PostgresDatabase, connection: Connection[Found]) -> None:
        self._database = database
        self._connection = connection

    def rows(self, query: str, parameters: Mapping[str, Any]) -> list[Found]:
        with self._database.translated():
            return self._connection.execute(_query(query), _parameters(parameters)).fetchall()

    def rows_within(self, query: str, parameters: Mapping[str, Any], column: str, size: int) -> list[Found]:
        # Other cursors have all rows sent at once.
        with self._database.translated(), self._connection.cursor("within") as cursor:
            cursor.itersize = FETCHED
            cursor.execute(_query(query), _parameters(parameters))
            return within(cursor, column, size)

    def tables(self) -> frozenset[str]:
        query = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(:schema) AND relkind IN ('r', 'v')"
        return frozenset(row["relname"] for row in self.rows(query, {"schema": SCHEMA}))

    def columns(self, table: str) -> frozenset[str]:
        query = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(:table) AND attnum > 0"
        return frozenset(row["attname"] for row in self.rows(query, {"table": f"{SCHEMA}.{table}"}))


class _Change(_Reader):
    def run(self, statement: str, parameters: Mapping[str, Any]) -> int:
        with self._database.translated():
            return self._connection.execute(_query(statement), _parameters(parameters)).rowcount

    def run_many(self, statement: str, parameters: Sequence[Mapping[str, Any]]) -> None:
        with self._database.translated(), self._connection.cursor() as cursor:
            cursor.executemany(_query(statement), [_parameters(one) for one in parameters])


def _insert(table: str, columns: Mapping[str, Kind], returned: str) -> str:
    arrays = ", ".join(f"%s::{_KINDS[kind]}[]" for kind in columns.values())
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT * FROM unnest({arrays}) "
        f"ON CONFLICT DO NOTHING RETURNING {returned}"
    )


_INSERT_REQUESTS = _insert("requests", REQUESTS, "request_id")
_INSERT_SPENDINGS = _insert("spendings", SPENDINGS, "request_id, number")
_SUM_TYPES = ("bigint", *["text"] * len(SUM_KEYS), *["numeric"] * len(SUMMED))
_ADD = {
    table: f"INSERT INTO {table} SELECT * FROM unnest({', '.join(f'%s::{kind}[]' for kind in _SUM_TYPES)}) "
    f"ON CONFLICT (start, {', '.join(SUM_KEYS)}) DO UPDATE SET "
    + ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in SUMMED)
    for table in ("hours", "days")
}


class _Writer:
    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._connection: Connection[Found] | None = None

    def insert(self, requests: Sequence[Row], spendings: Sequence[Row]) -> None:
        import psycopg

        try:
            if self._connection is None:
                connection = self._database.connect()
                self._connection = connection
                self._database.migrate(connection)
            with self._database.transaction(self._connection, WRITE_TIMEOUT):
                self._insert(self._connection, requests, spendings)
        except DatabaseError as error:
            if isinstance(error.__cause__, psycopg.DataError):
                raise ValueError(str(error)) from error
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _insert(
        self, connection: Connection[Found], requests: Sequence[Row], spendings: Sequence[Row]
    ) -> None:
        requests, spendings = [_clean(row) for row in requests], [_clean(row) for row in spendings]
        found = connection.execute(_INSERT_REQUESTS, _transposed(requests)).fetchall() if requests else []
        ids = {row["request_id"] for row in found}
        charged = (
            connection.execute(_INSERT_SPENDINGS, _transposed(spendings)).fetchall() if spendings else []
        )
        numbers = {(row["request_id"], row["number"]) for row in charged}
        new = sums_of(_first(requests, ids, 1), _first(spendings, numbers, 2))
        for table, sums in zip(("hours", "days"), new, strict=True):
            if sums:
                connection.execute(_ADD[table], _transposed(sums))


def _first(rows: Sequence[Row], new: set[Any], keys: int) -> Iterator[Row]:
    """The first row with each of the keys that are ``new``: it is the one that was inserted."""
    for row in rows:
        key = row[0] if keys == 1 else row[:keys]
        if key in new:
            new.remove(key)
            yield row


def _transposed(rows: Sequence[Row]) -> list[list[str | int | float | None]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _query(query: str) -> str:
    """With psycopg's parameters."""
    return _PARAMETER.sub(r"%(\1)s", query.replace("%", "%%"))


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _text(value) for name, value in parameters.items()}


def _clean(row: Row) -> Row:
    return tuple(map(_text, row))


def _text(value: Any) -> Any:
    """PostgreSQL's text holds every character but one."""
    return (
        value.replace("\0", "\N{REPLACEMENT CHARACTER}")
        if isinstance(value, str) and "\0" in value
        else value
    )
