"""A gateway's own ledger as traffic: who asked what, and what came of it; without prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.databases.database import Database
from gateway.metering.price import NANO
from gateway.recording.recorded_request import Outcome, RecordedRequest

_AT_ONCE = 10_000
_QUERY = """
SELECT * FROM requests WHERE created >= :since AND (created > :created OR (created = :created AND request_id > :id))
ORDER BY created, request_id LIMIT :most
"""


def read_ledger(database: Database, since: float = 0.0) -> Iterator[RecordedRequest]:
    """In order of time. Raises ``DatabaseError``."""
    if not database.exists():
        return
    created, identity = since, ""
    while True:
        with database.reading() as reader:
            if "requests" not in reader.tables():
                return
            given = {"since": since, "created": created, "id": identity, "most": _AT_ONCE}
            found = reader.rows(_QUERY, given)
        for row in found:
            yield _request(row)
        if len(found) < _AT_ONCE:
            return
        created, identity = float(found[-1]["created"]), str(found[-1]["request_id"])


def _request(row: Mapping[str, Any]) -> RecordedRequest:
    outcome = _outcome(row)
    return RecordedRequest(
        at=float(row["created"]),
        request_id=str(row["request_id"]),
        tenant=str(row["tenant"]),
        key=str(row["key_id"]),
        user=str(row.get("end_user") or ""),
        tier=str(row["tier"]),
        model=str(row["model"]),
        answered=str(row["answered_model"] or "") if outcome != "refused" else "",
        backend=str(row["backend"] or ""),
        target=str(row["target_model"] or ""),
        stream=bool(row["stream"]),
        prompt_tokens=int(row["prompt_tokens"]),
        completion_tokens=int(row["completion_tokens"]),
        cached_tokens=int(row["cached_tokens"]),
        reasoning_tokens=int(row["reasoning_tokens"]),
        outcome=outcome,
        status=int(row["status"]),
        code=str(row["error"] or ""),
        ttft=row.get("first_token"),
        duration=float(row["seconds"]),
        finish_reason=str(row.get("finish_reason") or ""),
        cost=int(row["cost_nanodollars"]) / NANO,
    )


def _outcome(row: Mapping[str, Any]) -> Outcome:
    error, status = row["error"], int(row["status"])
    if error is None and status < 400:
        return "completed"
    if status == 499:
        return "revoked" if error == "cut" else "cancelled"
    if not row["attempts"] and status != 500 and not str(error or "").startswith("upstream"):
        return "refused"
    return "failed"
