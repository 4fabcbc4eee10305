"""Feedback in the ledger's database. Its methods wait for the database, and are called in threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from gateway.databases.database import Change, Found
from gateway.databases.migrations import Migrations
from gateway.databases.own_tables import OwnTables
from gateway.feedback.feedback import Feedback, Figures, figures

FEEDBACK = Migrations(
    "feedback",
    (
        (
            """
CREATE TABLE feedback (
    tenant TEXT NOT NULL,
    request_id TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    backend TEXT NOT NULL,
    score DOUBLE PRECISION,
    label TEXT,
    comment TEXT,
    PRIMARY KEY (tenant, request_id)
)""",
            "CREATE INDEX feedback_by_time ON feedback (created)",
        ),
    ),
)
Group = Literal["tenant", "key", "model", "backend", "label"]
_COLUMNS: dict[Group, str] = {
    "tenant": "tenant",
    "key": "key_id",
    "model": "model",
    "backend": "backend",
    "label": "coalesce(label, '')",
}
KEPT = 400 * 86_400.0
"""Seconds for which it is kept."""
_SWEEP = 86_400.0
_MOST_GROUPS = 1000
_WRITE = """
INSERT INTO feedback (tenant, request_id, created, key_id, model, backend, score, label, comment)
VALUES (:tenant, :request_id, :created, :key_id, :model, :backend, :score, :label, :comment)
ON CONFLICT (tenant, request_id) DO UPDATE SET created = excluded.created, key_id = excluded.key_id,
score = excluded.score, label = excluded.label, comment = excluded.comment"""


class FeedbackTable(OwnTables):
    """A request has one opinion, the last. All methods raise ``DatabaseError``."""

    _swept = 0.0

    def write(self, feedback: Feedback) -> None:
        def change(one: Change) -> None:
            one.run(_WRITE, asdict(feedback))
            if feedback.created >= self._swept + _SWEEP:
                one.run("DELETE FROM feedback WHERE created < :before", {"before": feedback.created - KEPT})

        self._change(change)
        self._swept = max(self._swept, feedback.created - feedback.created % _SWEEP)

    def find(self, tenant: str, request_id: str) -> Feedback | None:
        given = {"tenant": tenant, "request_id": request_id}
        found = self._rows(
            "SELECT * FROM feedback WHERE tenant = :tenant AND request_id = :request_id", given
        )
        return Feedback(**found[0]) if found else None

    def figures(
        self,
        by: Sequence[Group],
        since: float,
        until: float | None = None,
        equal: Sequence[tuple[Group, str]] = (),
    ) -> list[Figures]:
        """A row for each group of feedback since then, those with the most first."""
        if not self.exists:
            return []
        columns = "".join(f"{_COLUMNS[group]} AS {_name(group)}, " for group in by)
        groups = f" GROUP BY {', '.join(str(place + 1) for place in range(len(by)))}" if by else ""
        conditions = "".join(f" AND {_COLUMNS[group]} = :equal_{group}" for group, _ in equal)
        query = (
            f"SELECT {columns}count(*) AS told, count(score) AS scored, sum(score) AS total FROM feedback "
            f"WHERE created >= :since AND created < :until{conditions}{groups} ORDER BY told DESC LIMIT {_MOST_GROUPS}"
        )
        given: dict[str, Any] = {f"equal_{group}": value for group, value in equal}
        given |= {"since": since, "until": time.time() + 1.0 if until is None else until}
        return [_figures(row, by) for row in self._rows(query, given) if row["told"]]

    def comments(self, since: float, most: int, equal: Sequence[tuple[Group, str]] = ()) -> list[Feedback]:
        """The newest that have a comment or a label."""
        if not self.exists:
            return []
        conditions = "".join(f" AND {_COLUMNS[group]} = :equal_{group}" for group, _ in equal)
        query = (
            "SELECT * FROM feedback WHERE created >= :since AND (comment IS NOT NULL OR label IS NOT NULL)"
            f"{conditions} ORDER BY created DESC LIMIT :most"
        )
        given: dict[str, Any] = {f"equal_{group}": value for group, value in equal}
        return [Feedback(**row) for row in self._rows(query, {**given, "since": since, "most": most})]


def _name(group: Group) -> str:
    """Of the column that is returned: not one of the table's, which a clause would mean instead."""
    return f"of_{group}"


def _figures(row: Found, by: Sequence[Group]) -> Figures:
    return figures(
        tuple(str(row[_name(group)]) for group in by), row["told"], row["scored"], float(row["total"] or 0.0)
    )
