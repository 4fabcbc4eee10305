"""Finding requests in the ledger: the newest that fit a filter, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from gateway.databases.database import Database, Reader
from gateway.databases.tables import HAPPENED

SCAN = 50_000
"""Requests that one search looks at, at most: a fifth of a second's work."""
Outcome = Literal["answered", "cached", "failed", "limited", "refused", "left"]
"""``failed`` is what the objectives of docs/operations.md call so, ``limited`` a 429, ``refused`` any other 4xx."""
CACHED = "(status < 400 AND attempts = 0 AND answered_model IS NOT NULL)"
"""A cache answered: no model was asked, or another request asked it."""
_NEWEST = "ORDER BY created DESC, request_id DESC"
_COLUMNS = (
    *(
        "request_id",
        "created",
        "tenant",
        "key_id",
        "tier",
        "model",
        "answered_model",
        "backend",
        "target_model",
    ),
    *("status", "stream", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
    *("cost_nanodollars", "estimated", "seconds", "attempts", "error", "user_agent"),
    *HAPPENED,
)


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """What is None does not count. ``since`` and ``until`` are Unix time, ``until`` exclusive."""

    request_id: str | None = None
    since: float | None = None
    until: float | None = None
    tenant: str | None = None
    key: str | None = None
    model: str | None = None
    backend: str | None = None
    status: int | None = None
    error: str | None = None
    failed: bool | None = None
    outcome: Outcome | None = None
    min_seconds: float | None = None
    user: str | None = None
    """Its hash."""
    tag: str | None = None
    finish_reason: str | None = None

    def conditions(self) -> tuple[list[str], list[str], dict[str, Any]]:
        """Those that an index answers, all others, and their parameters."""
        given = {
            field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None
        }
        direct = [_CONDITIONS[name] for name in given if name in _INDEXED]
        return direct, [_CONDITIONS[name] for name in given if name not in _INDEXED], given


_INDEXED = ("request_id", "since", "until", "tenant")
_CONDITIONS = {
    "request_id": "request_id = :request_id",
    "since": "created >= :since",
    "until": "created < :until",
    "tenant": "tenant = :tenant",
    "key": "key_id = :key",
    "model": "(model = :model OR answered_model = :model)",
    "backend": "backend = :backend",
    "status": "status = :status",
    "error": "error = :error",
    "failed": "(status >= 500) = :failed",
    "outcome": f"CASE WHEN status >= 500 THEN 'failed' WHEN status = 429 THEN 'limited' WHEN status = 499 THEN 'left' "
    f"WHEN status >= 400 THEN 'refused' WHEN {CACHED} THEN 'cached' ELSE 'answered' END = :outcome",
    "min_seconds": "seconds >= :min_seconds",
    "user": "end_user = :user",
    "tag": "replace(tags, ',' || :tag || ',', '') <> tags",
    "finish_reason": "finish_reason = :finish_reason",
}


@dataclass(frozen=True, slots=True)
class FoundRequests:
    rows: list[dict[str, Any]]
    next: tuple[float, str] | None = None
    """``created`` and ``request_id`` of where to go on; None where there is nothing older."""
    searched_to: float | None = None
    """Where the search ended before the oldest request: how far back it came, in Unix time."""


def find_requests(
    database: Database,
    where: RequestFilter,
    *,
    limit: int,
    after: tuple[float, str] | None = None,
    scan: int = SCAN,
) -> FoundRequests:
    """The newest requests, or those older than ``after`` (``created`` and ``request_id``).

    Looks at ``scan`` requests at most, so that a filter that hardly any fits takes no longer than others. Raises
    ``DatabaseError``.
    """
    if not database.exists():
        return FoundRequests([])
    direct, others, parameters = where.conditions()
    if after is not None:
        direct.append("(created, request_id) < (:after_created, :after_id)")
        parameters |= {"after_created": after[0], "after_id": after[1]}
    with database.reading() as reader:
        here = reader.columns("requests")
        if not here:
            return FoundRequests([])  # a new ledger, whose tables are just being made
        end = _end(reader, direct, parameters, scan) if others else None
        if end is not None:
            others.append("(created, request_id) >= (:end_created, :end_id)")
            parameters |= {"end_created": end[0], "end_id": end[1]}
        columns = ", ".join(name if name in here else f"NULL AS {name}" for name in _COLUMNS)
        rows = reader.rows(
            f"SELECT {columns} FROM requests WHERE {' AND '.join([*direct, *others]) or 'true'} "
            f"{_NEWEST} LIMIT :limit",
            {**parameters, "limit": limit + 1},
        )
    if len(rows) > limit:
        last = rows[limit - 1]
        return FoundRequests(rows[:limit], (last["created"], last["request_id"]))
    return FoundRequests(rows, end, end[0] if end is not None else None)


def _end(
    reader: Reader, conditions: list[str], parameters: dict[str, Any], scan: int
) -> tuple[float, str] | None:
    """The last of ``scan`` requests; None where there are fewer. An index has all that this reads."""
    where = " AND ".join(conditions) or "true"
    found = reader.rows(
        f"SELECT created, request_id FROM requests WHERE {where} {_NEWEST} LIMIT 1 OFFSET :skipped",
        {**parameters, "skipped": scan - 1},
    )
    return (found[0]["created"], found[0]["request_id"]) if found else None
