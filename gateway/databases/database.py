"""A database that holds the ledger, whichever it is: what readers and the one who writes ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Row = tuple[str | int | float | None, ...]
Found = dict[str, Any]
"""A row by its columns' names. Whole numbers are ``int``, of any size."""


def within(rows: Iterable[Found], column: str, size: int) -> list[Found]:
    """See ``Reader.rows_within``."""
    found: list[Found] = []
    for row in rows:
        size -= len(row[column])
        if found and size < 0:
            break
        found.append(row)
    return found


class DatabaseError(Exception):
    """The database does not answer, or refuses: it may do otherwise later. The message holds no password."""


class Conflict(DatabaseError):
    """Another's change came in between; the transaction had no effect and may be repeated at once."""


class Reader(Protocol):
    """One connection, for one thread. Queries are written for both kinds of database, with parameters as ``:name``.

    Each method raises ``DatabaseError``.
    """

    def rows(self, query: str, parameters: Mapping[str, Any]) -> list[Found]: ...

    def rows_within(self, query: str, parameters: Mapping[str, Any], column: str, size: int) -> list[Found]:
        """The first of ``rows``, as long as their texts in ``column`` have no more than ``size`` characters together;
        the first at any rate. Few more are read from the database."""
        ...

    def tables(self) -> frozenset[str]:
        """The names of the ledger's tables and views: an old one has fewer, a new one may have none yet."""
        ...

    def columns(self, table: str) -> frozenset[str]: ...


class Change(Protocol):
    """A transaction: all of it happens, or nothing."""

    def rows(self, query: str, parameters: Mapping[str, Any]) -> list[Found]: ...

    def run(self, statement: str, parameters: Mapping[str, Any]) -> int:
        """Returns how many rows it changed."""
        ...

    def run_many(self, statement: str, parameters: Sequence[Mapping[str, Any]]) -> None:
        """Run it once for each of ``parameters``."""
        ...


class Writer(Protocol):
    """The ledger's own connection, for one thread: opened on demand, and again after an error."""

    def insert(self, requests: Sequence[Row], spendings: Sequence[Row]) -> None:
        """Insert rows (``gateway.databases.tables``) and add what is new among them to the sums, in one transaction.

        Raises ``DatabaseError``, and another exception for a row that can never be written; nothing was written then.
        """
        ...

    def close(self) -> None: ...


class Database(Protocol):
    """``str()`` of it is its address for messages, without a password."""

    def exists(self) -> bool:
        """False where nothing was ever written, as far as that can be told without asking a server."""
        ...

    def reading(self) -> AbstractContextManager[Reader]:
        """Raises ``DatabaseError``."""
        ...

    def changing(self) -> AbstractContextManager[Change]:
        """A transaction on tables of this program's version that excludes others of its kind. Raises
        ``DatabaseError``."""
        ...

    def now(self) -> str:
        """An expression for Unix time by the database's own clock, the same for all who ask it."""
        ...

    def writer(self) -> Writer: ...

    def day(self, created: str) -> str:
        """An expression for the UTC day (``2027-01-31``) of a column of Unix time."""
        ...

    def second(self, created: str) -> str:
        """An expression for the whole seconds of a column of Unix time."""
        ...

    def month(self, start: str) -> str:
        """An expression for when the UTC month began, as Unix time, of a column of Unix time."""
        ...
