"""The rows of batches and their lines in a database. Its methods wait for the database, and are called in threads.

Whoever runs a batch owns it by a lease. Every change of an owner's names it: one whose lease another has taken changes
nothing, and gets ``LeaseLost``. A line's result and the batch's sums are written in one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import orjson

from gateway.batches.batch import ENDED, Batch, Creator, Status, Sums
from gateway.batches.line import Line, LineResult, LineState
from gateway.databases.database import Change
from gateway.databases.migrations import Migrations
from gateway.databases.own_tables import OwnTables

_TIMES = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at"),
    *("cancelling_at", "cancelled_at"),
)
_SUMS = tuple(one.name for one in fields(Sums))
BATCHES = Migrations(
    "batches",
    (
        (
            f"""
CREATE TABLE batches (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    creator TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    status TEXT NOT NULL,
    metadata TEXT,
    output_seconds BIGINT,
    model TEXT,
    errors TEXT,
    output_file_id TEXT,
    error_file_id TEXT,
    total BIGINT NOT NULL,
    {", ".join(f"{name} BIGINT NOT NULL" for name in _SUMS)},
    {", ".join(f"{name} BIGINT" for name in _TIMES)},
    owner TEXT NOT NULL,
    lease DOUBLE PRECISION NOT NULL
)""",
            "CREATE INDEX batches_by_tenant ON batches (tenant, id)",
            "CREATE INDEX batches_by_status ON batches (status, created_at)",
            """
CREATE TABLE batch_lines (
    batch_id TEXT NOT NULL,
    number BIGINT NOT NULL,
    state TEXT NOT NULL,
    model TEXT NOT NULL,
    prefix TEXT NOT NULL,
    custom_id TEXT NOT NULL,
    body TEXT NOT NULL,
    result TEXT NOT NULL,
    PRIMARY KEY (batch_id, number)
)""",
            "CREATE INDEX batch_lines_in_order ON batch_lines (batch_id, state, model, prefix, number)",
        ),
    ),
)
_OPEN = "status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
_CANDIDATES = 1000
_AT_ONCE = 500
READ_SIZE = 8 * 2**20
"""Characters of bodies or results that are read at once, or one line's: a result may be a thousand embeddings."""
_T = TypeVar("_T")


class LeaseLost(Exception):
    """Another owner has the batch now, or it was deleted."""


@dataclass(frozen=True, slots=True)
class StoredLine:
    """As it is read for the files at the end."""

    line: Line
    state: LineState
    result: str


class BatchTable(OwnTables):
    """All methods raise ``DatabaseError``; those that take an ``owner`` raise ``LeaseLost``."""

    # What callers ask.

    def create(self, batch: Batch) -> None:
        row = _row(batch)
        names = ", ".join(row)
        values = ", ".join(f":{name}" for name in row)
        self._change(lambda change: change.run(f"INSERT INTO batches ({names}) VALUES ({values})", row))

    def find(self, tenant: str, id: str) -> Batch | None:
        found = self._rows(
            "SELECT * FROM batches WHERE id = :id AND tenant = :tenant", {"id": id, "tenant": tenant}
        )
        return _batch(found[0]) if found else None

    def listed(self, tenant: str, after: str | None, limit: int) -> list[Batch]:
        """The newest first."""
        query, given = "SELECT * FROM batches WHERE tenant = :tenant", {"tenant": tenant, "most": limit}
        if after is not None:
            query += " AND id < :after"
            given["after"] = after
        return [_batch(row) for row in self._rows(f"{query} ORDER BY id DESC LIMIT :most", given)]

    def cancel(self, tenant: str, id: str, now: int) -> bool:
        """Whether it could be: whoever owns it stops it then."""
        statement = (
            "UPDATE batches SET status = 'cancelling', cancelling_at = :now WHERE id = :id AND tenant = :tenant "
            "AND status IN ('validating', 'in_progress')"
        )
        return self._change(lambda one: one.run(statement, {"id": id, "tenant": tenant, "now": now})) == 1

    def forget(self, before: int) -> int:
        """Delete what ended, and was made before ``before``."""
        ended = ", ".join(f"'{status}'" for status in sorted(ENDED))
        statement = f"DELETE FROM batches WHERE status IN ({ended}) AND created_at < :before"
        return self._change(lambda change: change.run(statement, {"before": before}))

    # Owning.

    def claim(self, owner: str, lease: float, most: int, running: Collection[str]) -> list[Batch]:
        """Own up to ``most`` more that nobody does, those of tenants first of whom the fewest are owned already.

        What is owned and not ``running`` is had again.
        """
        now = self._database.now()
        free = f"{_OPEN} AND (owner = '' OR owner = :owner OR lease < {now})"

        def change(change: Change) -> list[Batch]:
            query = f"SELECT id, tenant FROM batches WHERE {free} ORDER BY created_at, id LIMIT :most"
            found = change.rows(query, {"most": _CANDIDATES, "owner": owner})
            mine = Counter(str(row["tenant"]) for row in found if row["id"] in running)
            claimed = []
            for found_id in _in_turns([row for row in found if row["id"] not in running], mine)[:most]:
                given = {"id": found_id, "owner": owner, "lease": lease}
                change.run(f"UPDATE batches SET owner = :owner, lease = {now} + :lease WHERE id = :id", given)
                claimed += change.rows("SELECT * FROM batches WHERE id = :id", {"id": found_id})
            return [_batch(row) for row in claimed]

        found = self._rows(
            f"SELECT id FROM batches WHERE {free} LIMIT :most", {"owner": owner, "most": _CANDIDATES}
        )
        if all(row["id"] in running for row in found):
            return []  # nothing is locked to learn that
        return self._change(change)

    def renew(self, owner: str, lease: float) -> dict[str, tuple[Status, int]]:
        """Keep what is owned; by id its status, which a caller may have changed, and when it expires."""

        def change(change: Change) -> dict[str, tuple[Status, int]]:
            statement = (
                f"UPDATE batches SET lease = {self._database.now()} + :lease WHERE owner = :owner AND {_OPEN}"
            )
            change.run(statement, {"owner": owner, "lease": lease})
            query = f"SELECT id, status, expires_at FROM batches WHERE owner = :owner AND {_OPEN}"
            return {
                row["id"]: (row["status"], int(row["expires_at"]))
                for row in change.rows(query, {"owner": owner})
            }

        return self._change(change)

    def release(self, owner: str, id: str | None = None) -> None:
        """Let others have it, or all that is owned."""
        statement = "UPDATE batches SET owner = '', lease = 0 WHERE owner = :owner"
        given = {"owner": owner}
        if id is not None:
            statement, given = f"{statement} AND id = :id", {"owner": owner, "id": id}
        self._change(lambda change: change.run(statement, given))

    # What owners do.

    def add_lines(self, owner: str, id: str, lines: Sequence[Line]) -> None:
        """Repeating it changes nothing."""
        statement = (
            "INSERT INTO batch_lines (batch_id, number, state, model, prefix, custom_id, body, result) "
            "VALUES (:batch_id, :number, 'pending', :model, :prefix, :custom_id, :body, '') ON CONFLICT DO NOTHING"
        )
        rows = [{"batch_id": id, **asdict(line)} for line in lines]
        self._owned(owner, id, lambda change: change.run_many(statement, rows))

    def begin(self, owner: str, id: str, total: int, model: str | None, now: int) -> None:
        """Its input is good. One that was cancelled meanwhile stays so."""

        def change(change: Change) -> None:
            given = {"id": id, "total": total, "model": model, "now": now}
            change.run("UPDATE batches SET total = :total, model = :model WHERE id = :id", given)
            change.run(
                "UPDATE batches SET status = 'in_progress', in_progress_at = :now "
                "WHERE id = :id AND status = 'validating'",
                given,
            )

        self._owned(owner, id, change)

    def finish(self, owner: str, id: str, now: int) -> None:
        """No line of it runs any more: its files are written."""
        statement = (
            "UPDATE batches SET status = 'finalizing', finalizing_at = :now "
            "WHERE id = :id AND status = 'in_progress'"
        )
        self._owned(owner, id, lambda change: change.run(statement, {"id": id, "now": now}))

    def set_file(self, owner: str, id: str, kind: str, file_id: str) -> None:
        """``kind`` is ``output`` or ``error``."""
        statement = f"UPDATE batches SET {kind}_file_id = :file WHERE id = :id"
        self._owned(owner, id, lambda change: change.run(statement, {"id": id, "file": file_id}))

    def end(self, owner: str, id: str, status: Status, now: int, errors: Sequence[Any] = ()) -> None:
        """Its lines are forgotten. One that is to be cancelled can only end so."""

        def change(change: Change) -> None:
            given = {"id": id, "status": status, "now": now, "errors": _json(errors) if errors else None}
            if status != "cancelled":
                change.run(
                    f"UPDATE batches SET status = :status, {status}_at = :now, errors = :errors "
                    "WHERE id = :id AND status <> 'cancelling'",
                    given,
                )
            change.run(
                "UPDATE batches SET status = 'cancelled', cancelled_at = :now "
                "WHERE id = :id AND status = 'cancelling'",
                given,
            )
            change.run("UPDATE batches SET owner = '', lease = 0 WHERE id = :id", given)
            change.run("DELETE FROM batch_lines WHERE batch_id = :id", given)

        self._owned(owner, id, change)

    def settle(self, owner: str, id: str, results: Sequence[LineResult]) -> Sums:
        """Keep results; those of lines that have one are dropped. What was new is added to the batch's sums."""

        def change(change: Change) -> Sums:
            pending = change.rows(
                "SELECT number FROM batch_lines WHERE batch_id = :id AND state = 'pending' "
                f"AND number IN ({', '.join(str(int(one.number)) for one in results)})",
                {"id": id},
            )
            left = {int(row["number"]) for row in pending}
            new = {one.number: one for one in results if one.number in left}
            if not new:
                return Sums()
            change.run_many(
                "UPDATE batch_lines SET state = :state, result = :result, body = '' "
                "WHERE batch_id = :id AND number = :number",
                [
                    {"id": id, "number": one.number, "state": one.state, "result": one.written}
                    for one in new.values()
                ],
            )
            sums = sum((one.sums for one in new.values()), Sums())
            added = ", ".join(f"{name} = {name} + :{name}" for name in _SUMS)
            change.run(f"UPDATE batches SET {added} WHERE id = :id", {"id": id, **asdict(sums)})
            return sums

        return self._owned(owner, id, change)

    # What is read by owners.

    def models(self, id: str) -> dict[str, int]:
        """How many lines of each model have no result."""
        query = (
            "SELECT model, count(*) AS lines FROM batch_lines WHERE batch_id = :id AND state = 'pending' "
            "GROUP BY model"
        )
        return {str(row["model"]): int(row["lines"]) for row in self._rows(query, {"id": id})}

    def pending(self, id: str, model: str, after: Line | None, limit: int) -> list[Line]:
        """Lines without a result, past ``after``, those with a common prefix next to one another.

        None of them is left where none is returned; fewer than ``limit`` are where they are long.
        """
        query = (
            "SELECT number, custom_id, model, prefix, body FROM batch_lines WHERE batch_id = :id "
            "AND state = 'pending' AND model = :model"
        )
        given: dict[str, Any] = {"id": id, "model": model, "most": limit}
        if after is not None:
            query += " AND (prefix > :prefix OR (prefix = :prefix AND number > :number))"
            given |= {"prefix": after.prefix, "number": after.number}
        rows = self._rows_within(f"{query} ORDER BY prefix, number LIMIT :most", given, "body", READ_SIZE)
        return [Line(**row) for row in rows]

    def lines(
        self, id: str, states: Iterable[LineState], after: int, limit: int = _AT_ONCE
    ) -> list[StoredLine]:
        """Those in ``states`` past number ``after``, in the order of the input; fewer than ``limit`` where results
        are long."""
        wanted = ", ".join(f"'{state}'" for state in states)
        query = (
            "SELECT number, custom_id, model, prefix, state, result FROM batch_lines WHERE batch_id = :id "
            f"AND state IN ({wanted}) AND number > :after ORDER BY number LIMIT :most"
        )
        rows = self._rows_within(query, {"id": id, "after": after, "most": limit}, "result", READ_SIZE)
        return [
            StoredLine(
                Line(row["number"], row["custom_id"], row["model"], row["prefix"], ""),
                row["state"],
                row["result"],
            )
            for row in rows
        ]

    def _owned(self, owner: str, id: str, change: Callable[[Change], _T]) -> _T:
        """A change by the owner, or none."""

        def changed(one: Change) -> _T:
            fence = "UPDATE batches SET owner = owner WHERE id = :id AND owner = :owner"
            if one.run(fence, {"id": id, "owner": owner}) != 1:
                raise LeaseLost(id)
            return change(one)

        return self._change(changed)


def _in_turns(found: Sequence[dict[str, Any]], owned: Counter[str]) -> list[str]:
    """Ids of batches, by how many of their tenant come before."""
    ranked: list[tuple[int, int, str]] = []
    for row in found:
        tenant = str(row["tenant"])
        ranked.append((owned[tenant], len(ranked), str(row["id"])))
        owned[tenant] += 1
    return [name for _, _, name in sorted(ranked)]


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _row(batch: Batch) -> dict[str, Any]:
    return {
        **{name: getattr(batch, name) for name in ("id", "tenant", "endpoint", "input_file_id")},
        **{name: getattr(batch, name) for name in ("created_at", "expires_at", "status", "output_seconds")},
        **{name: getattr(batch, name) for name in ("model", "output_file_id", "error_file_id", "total")},
        **{name: getattr(batch, name) for name in _TIMES},
        **asdict(batch.sums),
        "creator": _json(asdict(batch.creator)),
        "metadata": None if batch.metadata is None else _json(batch.metadata),
        "errors": _json(batch.errors) if batch.errors else None,
        "owner": "",
        "lease": 0.0,
    }


def _batch(row: dict[str, Any]) -> Batch:
    creator = orjson.loads(row["creator"])
    creator["models"] = tuple(creator["models"])
    plain = {one.name for one in fields(Batch)} - {"creator", "metadata", "errors", "sums"}
    return Batch(
        **{name: row[name] for name in plain},
        creator=Creator(**creator),
        metadata=None if row["metadata"] is None else orjson.loads(row["metadata"]),
        errors=tuple(orjson.loads(row["errors"])) if row["errors"] else (),
        sums=Sums(**{name: row[name] for name in _SUMS}),
    )
