"""The rows of adapters in a database. Its methods wait for the database, and are called in threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import orjson

from gateway.adapters.adapter import Adapter
from gateway.databases.database import Change
from gateway.databases.migrations import Migrations
from gateway.databases.own_tables import OwnTables

ADAPTERS = Migrations(
    "adapters",
    (
        (
            """
CREATE TABLE adapters (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    base TEXT NOT NULL,
    rank BIGINT NOT NULL,
    targets TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    archive TEXT NOT NULL,
    archive_sha256 TEXT NOT NULL,
    archive_bytes BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    key_id TEXT NOT NULL,
    shared_with TEXT NOT NULL
)""",
            "CREATE UNIQUE INDEX adapters_by_name ON adapters (tenant, base, name)",
            """
CREATE TABLE adapter_changes (
    one BIGINT PRIMARY KEY,
    number BIGINT NOT NULL
)""",
            "INSERT INTO adapter_changes (one, number) VALUES (1, 0)",
        ),
    ),
)
"""``archive`` is there before its row, and after it: rows never lack their contents. ``number`` grows with each change,
so that who keeps all rows in memory asks for no more than that."""

_COLUMNS = tuple(one.name for one in fields(Adapter))


@dataclass(frozen=True, slots=True)
class Owned:
    """What a tenant has."""

    adapters: int
    bytes: int
    named: bool
    """Among them one by the name in question."""


class AdapterTable(OwnTables):
    """Raises ``DatabaseError``."""

    def add(self, adapter: Adapter, admitted: Callable[[Owned], None]) -> None:
        """``admitted`` raises where the tenant may have no more."""

        def change(change: Change) -> None:
            admitted(self._owned(change, adapter))
            values = ", ".join(f":{name}" for name in _COLUMNS)
            change.run(f"INSERT INTO adapters ({', '.join(_COLUMNS)}) VALUES ({values})", _row(adapter))
            _count(change)

        self._change(change)

    def check(self, adapter: Adapter, admitted: Callable[[Owned], None]) -> None:
        """Whether it could be added now."""
        self._change(lambda change: admitted(self._owned(change, adapter)))

    def remove(self, tenant: str | None, id: str) -> Adapter | None:
        """It, where it was there and is its tenant's; without ``tenant``, whosever it is."""

        def change(change: Change) -> Adapter | None:
            rows = change.rows(f"SELECT {', '.join(_COLUMNS)} FROM adapters WHERE id = :id", {"id": id})
            if not rows or (tenant is not None and rows[0]["tenant"] != tenant):
                return None
            change.run("DELETE FROM adapters WHERE id = :id", {"id": id})
            _count(change)
            return _adapter(rows[0])

        return self._change(change)

    def all(self) -> tuple[int, list[Adapter]]:
        """Every adapter, the oldest first, and the number of the last change."""

        number = self.last_change()  # before the rows: what comes in between is read again
        return number, list(
            map(_adapter, self._rows(f"SELECT {', '.join(_COLUMNS)} FROM adapters ORDER BY id", {}))
        )

    def last_change(self) -> int:
        return int(self._rows("SELECT number FROM adapter_changes", {})[0]["number"])

    def _owned(self, change: Change, adapter: Adapter) -> Owned:
        (sums,) = change.rows(
            "SELECT count(*) AS adapters, coalesce(sum(bytes), 0) AS bytes, "
            "coalesce(sum(CASE WHEN base = :base AND name = :name THEN 1 ELSE 0 END), 0) AS named "
            "FROM adapters WHERE tenant = :tenant",
            {"tenant": adapter.tenant, "base": adapter.base, "name": adapter.name},
        )
        return Owned(int(sums["adapters"]), int(sums["bytes"]), bool(sums["named"]))


def _count(change: Change) -> None:
    change.run("UPDATE adapter_changes SET number = number + 1", {})


def _row(adapter: Adapter) -> dict[str, Any]:
    lists = {name: orjson.dumps(getattr(adapter, name)).decode() for name in ("targets", "shared_with")}
    return {**asdict(adapter), **lists}


def _adapter(row: dict[str, Any]) -> Adapter:
    lists = {name: tuple(orjson.loads(row[name])) for name in ("targets", "shared_with")}
    return Adapter(**{**{name: row[name] for name in _COLUMNS}, **lists})
