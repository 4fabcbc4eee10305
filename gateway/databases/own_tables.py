"""Tables that are made at the first need, and changes to them that are repeated where others came in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

from gateway.databases.database import Change, Conflict, Database, Found, Reader

ATTEMPTS = 5
_T = TypeVar("_T")


def changed(database: Database, change: Callable[[Change], _T]) -> _T:
    """The result of ``change``, a transaction. Raises ``DatabaseError``."""
    for _ in range(ATTEMPTS - 1):
        with suppress(Conflict), database.changing() as transaction:
            return change(transaction)
    with database.changing() as transaction:
        return change(transaction)


class OwnTables:
    """For whoever has rows of his own in ``database``. Raises ``DatabaseError``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._made = False
        self._making = threading.Lock()

    @property
    def exists(self) -> bool:
        """False where nothing was ever written."""
        return self._database.exists()

    def _rows(self, query: str, given: Mapping[str, Any]) -> list[Found]:
        with self._reading() as reader:
            return reader.rows(query, given)

    def _rows_within(self, query: str, given: Mapping[str, Any], column: str, size: int) -> list[Found]:
        """See ``gateway.databases.database.Reader``."""
        with self._reading() as reader:
            return reader.rows_within(query, given, column, size)

    def _reading(self) -> AbstractContextManager[Reader]:
        if not self._made or not self._database.exists():
            with self._making:
                self._change(lambda change: None)
        return self._database.reading()

    def _change(self, change: Callable[[Change], _T]) -> _T:
        result = changed(self._database, change)
        self._made = True
        return result
