"""Finding requests in the ledger: the newest that fit a filter, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from gateway.databases.database import Database

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
    min_seconds: float | None = None

    def conditions(self) -> tuple[list[str], dict[str, Any]]:
        given = {
            field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None
        }
        return [_CONDITIONS[name] for name in given], given


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
    "failed": "(status >= 400) = :failed",
    "min_seconds": "seconds >= :min_seconds",
}


def find_requests(
    database: Database, where: RequestFilter, *, limit: int, after: tuple[float, str] | None = None
) -> list[dict[str, Any]]:
    """The newest requests, or those older than ``after`` (``created`` and ``request_id``). Raises ``DatabaseError``."""
    if not database.exists():
        return []
    conditions, parameters = where.conditions()
    if after is not None:
        conditions.append("(created, request_id) < (:after_created, :after_id)")
        parameters |= {"after_created": after[0], "after_id": after[1]}
    with database.reading() as reader:
        here = reader.columns("requests")
        if not here:
            return []  # a new ledger, whose tables are just being made
        columns = ", ".join(name if name in here else f"'' AS {name}" for name in _COLUMNS)
        return reader.rows(
            f"SELECT {columns} FROM requests WHERE {' AND '.join(conditions) or 'true'} "
            "ORDER BY created DESC, request_id DESC LIMIT :limit",
            {**parameters, "limit": limit},
        )
