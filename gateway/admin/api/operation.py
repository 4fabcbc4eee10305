"""Operations of the admin API."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from gateway.admin.endpoint import Strict, Told
from gateway.web.operation import JSON, Operation

ROOT = "/admin/api"


def operation(
    method: str,
    path: str,
    name: str,
    summary: str,
    answer: type[Told],
    *,
    query: type[Strict] | None = None,
    body: type[Strict] | None = None,
    status: int = 200,
    errors: tuple[int, ...] = (),
    others: Mapping[str, type[BaseModel] | None] | None = None,
) -> Operation:
    """``path`` begins after ``/admin/api``; ``others`` are more content types than JSON."""
    answers = {JSON: answer, **(others or {})}
    return Operation(
        method, ROOT + path, name, summary, "admin", answers, status, query, body, errors, scope="admin"
    )
