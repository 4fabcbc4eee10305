"""The rows of files in a database. Its methods wait for the database, and are called in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.databases.database import Change
from gateway.databases.migrations import Migrations
from gateway.databases.own_tables import OwnTables

FILES = Migrations(
    "files",
    (
        (
            """
CREATE TABLE files (
    blob TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    key_id TEXT NOT NULL
)""",
            "CREATE UNIQUE INDEX files_by_id ON files (id)",
            "CREATE INDEX files_by_tenant ON files (tenant, state, id)",
            "CREATE INDEX files_by_state ON files (state, created_at)",
            "CREATE INDEX files_by_expiry ON files (expires_at)",
        ),
    ),
)
"""``blob`` is the name of the content. ``state`` is ``uploading``, ``ready`` or ``deleting``: there is a row before
there is a content, and until it is gone, so that whatever a crash leaves is found. ``created_at`` of an upload is its
last sign of life."""

ABANDONED = 900
"""Seconds without a sign of life (``FileTable.touch``) after which an upload is taken to have crashed."""
_AT_ONCE = 500
_COLUMNS = "id, tenant, filename, purpose, bytes, created_at, expires_at, key_id"
_ALIVE = "state = 'ready' AND (expires_at IS NULL OR expires_at > :now)"


@dataclass(frozen=True, slots=True)
class Kept:
    """What a tenant keeps, uploads under way with what they may have."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    id: str
    """``file-`` and hexadecimal digits, later ones greater."""
    tenant: str
    filename: str
    """As its owner calls it: a label, never a path."""
    purpose: str
    bytes: int
    created_at: int
    """Unix time, as is ``expires_at``."""
    expires_at: int | None
    """None where it is kept until it is deleted."""
    key_id: str
    """Of the key that it came with."""


class FileMissing(Exception):
    """There is no such file, or not any more; also where its content was removed past the store."""


class FileTable(OwnTables):
    """Raises ``DatabaseError``."""

    def reserve(self, blob: str, owner: StoredFile, admitted: Callable[[Kept], None]) -> None:
        """Note an upload of at most ``owner.bytes``. ``admitted`` raises where the tenant keeps too much already."""

        def change(change: Change) -> None:
            (sums,) = change.rows(
                "SELECT count(*) AS files, coalesce(sum(bytes), 0) AS bytes FROM files "
                "WHERE tenant = :tenant AND state <> 'deleting' AND (expires_at IS NULL OR expires_at > :now)",
                {"tenant": owner.tenant, "now": owner.created_at},
            )
            admitted(Kept(int(sums["files"]), int(sums["bytes"])))
            change.run(
                f"INSERT INTO files (blob, state, {_COLUMNS}) VALUES (:blob, 'uploading', :id, :tenant, :filename, "
                ":purpose, :bytes, :created_at, :expires_at, :key_id)",
                {"blob": blob, **asdict(owner)},
            )

        self._change(change)

    def touch(self, blobs: Sequence[str], now: int) -> None:
        """These uploads are still under way."""
        statement = "UPDATE files SET created_at = :now WHERE blob = :blob AND state = 'uploading'"

        def change(change: Change) -> None:
            for blob in blobs:
                change.run(statement, {"blob": blob, "now": now})

        self._change(change)

    def finish(self, blob: str, file: StoredFile) -> bool:
        """The content of an upload is there. False where it took so long that it was given up."""
        statement = (
            "UPDATE files SET state = 'ready', id = :id, filename = :filename, purpose = :purpose, bytes = :bytes, "
            "created_at = :created_at, expires_at = :expires_at WHERE blob = :blob AND state = 'uploading'"
        )
        given = {name: value for name, value in asdict(file).items() if name not in ("tenant", "key_id")}
        return self._change(lambda change: change.run(statement, {"blob": blob, **given})) == 1

    def find(self, tenant: str, id: str, now: int) -> tuple[StoredFile, str] | None:
        """It, and the name of its content."""
        query = f"SELECT blob, {_COLUMNS} FROM files WHERE id = :id AND tenant = :tenant AND {_ALIVE}"
        rows = self._rows(query, {"id": id, "tenant": tenant, "now": now})
        return (_file(rows[0]), str(rows[0]["blob"])) if rows else None

    def listed(
        self, tenant: str, purpose: str | None, after: str | None, limit: int, newest_first: bool, now: int
    ) -> list[StoredFile]:
        query = f"SELECT {_COLUMNS} FROM files WHERE tenant = :tenant AND {_ALIVE}"
        given: dict[str, Any] = {"tenant": tenant, "now": now, "most": limit}
        if purpose is not None:
            query += " AND purpose = :purpose"
            given["purpose"] = purpose
        if after is not None:
            query += f" AND id {'<' if newest_first else '>'} :after"
            given["after"] = after
        order = "DESC" if newest_first else "ASC"
        return [_file(row) for row in self._rows(f"{query} ORDER BY id {order} LIMIT :most", given)]

    def begin_delete(self, tenant: str, id: str, now: int) -> str | None:
        """The name of the content that is to be deleted; from now on nobody finds the file."""

        def change(change: Change) -> str | None:
            given = {"id": id, "tenant": tenant, "now": now}
            rows = change.rows(
                f"SELECT blob FROM files WHERE id = :id AND tenant = :tenant AND {_ALIVE}", given
            )
            if not rows:
                return None
            blob = str(rows[0]["blob"])
            return blob if self._mark(change, blob) else None

        return self._change(change)

    def begin_sweep(self, now: int) -> list[str]:
        """The names of contents that are to be deleted: of what has expired, was abandoned, or is being deleted."""

        def change(change: Change) -> list[str]:
            rows = change.rows(
                "SELECT blob FROM files WHERE state = 'deleting' OR expires_at <= :now "
                "OR (state = 'uploading' AND created_at < :abandoned) LIMIT :most",
                {"now": now, "abandoned": now - ABANDONED, "most": _AT_ONCE},
            )
            blobs = [str(row["blob"]) for row in rows]
            for blob in blobs:
                self._mark(change, blob)
            return blobs

        return self._change(change)

    def forget(self, blob: str) -> None:
        """Its content is gone."""
        self._change(lambda change: change.run("DELETE FROM files WHERE blob = :blob", {"blob": blob}))

    def _mark(self, change: Change, blob: str) -> bool:
        return change.run("UPDATE files SET state = 'deleting' WHERE blob = :blob", {"blob": blob}) == 1


def _file(row: dict[str, Any]) -> StoredFile:
    return StoredFile(**{name: row[name] for name in _COLUMNS.split(", ")})
