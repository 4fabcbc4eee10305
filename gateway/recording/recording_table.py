"""What was recorded, in the ledger's database: the segments that are closed, what each holds of whom, and data keys.

A segment has a row once its content is kept, and until that is gone: one whose state is ``deleting`` is found again
where its content could not be removed. Data keys are wrapped: the database alone opens no segment, nor does what holds
those. Methods wait for the database, and are called in threads. Each raises ``DatabaseError``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.databases.database import Change
from gateway.databases.migrations import Migrations
from gateway.databases.own_tables import OwnTables
from gateway.recording.segment import Part

RECORDINGS = Migrations(
    "recordings",
    (
        (
            """
CREATE TABLE record_keys (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    wrapped TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL
)""",
            "CREATE UNIQUE INDEX record_keys_by_tenant ON record_keys (tenant)",
            """
CREATE TABLE record_segments (
    id TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    ended DOUBLE PRECISION NOT NULL
)""",
            "CREATE INDEX record_segments_by_end ON record_segments (state, ended)",
            """
CREATE TABLE record_parts (
    segment TEXT NOT NULL,
    key_id TEXT NOT NULL,
    requests BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    began DOUBLE PRECISION NOT NULL,
    ended DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (segment, key_id)
)""",
            "CREATE INDEX record_parts_by_key ON record_parts (key_id, ended)",
        ),
    ),
)
_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class WrappedKey:
    id: str
    tenant: str
    wrapped: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is recorded of a tenant. ``bytes`` are compressed; times are Unix time."""

    tenant: str
    requests: int
    segments: int
    bytes: int
    began: float
    ended: float


class RecordingTable(OwnTables):
    def key_of(self, tenant: str, fresh: WrappedKey, now: float) -> WrappedKey:
        """The tenant's, which is ``fresh`` where it had none."""

        def change(change: Change) -> WrappedKey:
            change.run(
                "INSERT INTO record_keys (id, tenant, wrapped, created) VALUES (:id, :tenant, :wrapped, :created) "
                "ON CONFLICT DO NOTHING",
                {"id": fresh.id, "tenant": tenant, "wrapped": fresh.wrapped, "created": now},
            )
            (row,) = change.rows(
                "SELECT id, tenant, wrapped FROM record_keys WHERE tenant = :tenant", {"tenant": tenant}
            )
            return WrappedKey(**row)

        return self._change(change)

    def all_keys(self) -> list[WrappedKey]:
        return [WrappedKey(**row) for row in self._rows("SELECT id, tenant, wrapped FROM record_keys", {})]

    def enter(self, segment: str, size: int, parts: Mapping[bytes, Part], since: float | None = None) -> bool:
        """Its content is kept, and its age counts from ``since``, or from when its last request came.

        False, and nothing is entered, where none of its data keys is there any more.
        """

        def change(change: Change) -> bool:
            known = {str(row["id"]) for row in change.rows("SELECT id FROM record_keys", {})}
            held = {key.hex(): part for key, part in parts.items() if key.hex() in known}
            if not held:
                return False
            change.run(
                "INSERT INTO record_segments (id, state, bytes, ended) VALUES (:id, 'kept', :bytes, :ended) "
                "ON CONFLICT DO NOTHING",
                {
                    "id": segment,
                    "bytes": size,
                    "ended": since if since is not None else max(part.ended for part in held.values()),
                },
            )
            change.run_many(
                "INSERT INTO record_parts (segment, key_id, requests, bytes, began, ended) "
                "VALUES (:segment, :key_id, :requests, :bytes, :began, :ended) ON CONFLICT DO NOTHING",
                [
                    {
                        "segment": segment,
                        "key_id": key,
                        "requests": part.requests,
                        "bytes": part.bytes,
                        "began": part.began,
                        "ended": part.ended,
                    }
                    for key, part in held.items()
                ],
            )
            return True

        return self._change(change)

    def recorded(self, tenant: str | None = None) -> list[Recorded]:
        """By tenant, in their names' order."""
        rows = self._rows(
            "SELECT tenant, sum(requests) AS requests, count(*) AS segments, sum(bytes) AS bytes, "
            "min(began) AS began, max(ended) AS ended FROM record_parts "
            "JOIN record_keys ON record_keys.id = record_parts.key_id "
            f"{'WHERE tenant = :tenant ' if tenant is not None else ''}GROUP BY tenant ORDER BY tenant",
            {} if tenant is None else {"tenant": tenant},
        )
        return [
            Recorded(
                str(row["tenant"]),
                int(row["requests"]),
                int(row["segments"]),
                int(row["bytes"]),
                float(row["began"]),
                float(row["ended"]),
            )
            for row in rows
        ]

    def segments(self, key_ids: Sequence[str], since: float, until: float) -> list[str]:
        """Those that may hold requests of these data keys from ``since`` to ``until``, the earliest first."""
        wanted = frozenset(key_ids)
        rows = self._rows(
            "SELECT segment, key_id, began FROM record_parts "
            "JOIN record_segments ON record_segments.id = record_parts.segment "
            "WHERE state = 'kept' AND record_parts.ended >= :since AND began < :until ORDER BY began, segment",
            {"since": since, "until": until},
        )
        return list(dict.fromkeys(str(row["segment"]) for row in rows if row["key_id"] in wanted))

    def forget(self, tenant: str) -> int:
        """Its data key is gone, and with it all that was recorded of it, wherever copies of that are. Segments that
        hold nothing else are to be deleted. Returns how many requests that were."""

        def change(change: Change) -> int:
            given = {"tenant": tenant}
            mine = "key_id IN (SELECT id FROM record_keys WHERE tenant = :tenant)"
            (row,) = change.rows(
                f"SELECT coalesce(sum(requests), 0) AS found FROM record_parts WHERE {mine}", given
            )
            change.run(f"DELETE FROM record_parts WHERE {mine}", given)
            change.run("DELETE FROM record_keys WHERE tenant = :tenant", given)
            change.run(
                "UPDATE record_segments SET state = 'deleting' "
                "WHERE NOT EXISTS (SELECT 1 FROM record_parts WHERE segment = record_segments.id)",
                {},
            )
            return int(row["found"])

        return self._change(change)

    def begin_sweep(self, before: float, most_bytes: int) -> list[str]:
        """Segments whose contents are to be deleted: whose age counts from before ``before``, the oldest beyond
        ``most_bytes``, and those that are being deleted."""

        def change(change: Change) -> list[str]:
            rows = change.rows(
                "SELECT id, state, bytes, ended FROM record_segments ORDER BY ended DESC, id", {}
            )
            total, due = 0, []
            for row in rows:
                if row["state"] != "deleting":
                    total += int(row["bytes"])
                    if row["ended"] >= before and total <= most_bytes:
                        continue
                due.append(str(row["id"]))
            due = due[-_AT_ONCE:]
            for segment in due:
                change.run("UPDATE record_segments SET state = 'deleting' WHERE id = :id", {"id": segment})
                change.run("DELETE FROM record_parts WHERE segment = :id", {"id": segment})
            return due

        return self._change(change)

    def gone(self, segment: str) -> None:
        """Its content is deleted."""
        self._change(lambda change: change.run("DELETE FROM record_segments WHERE id = :id", {"id": segment}))
