"""``/admin/api/audit``: what was changed, by whom."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Strict, Told
from gateway.admin.site import Site
from gateway.web.operation import Operation


class AuditQuery(Strict):
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    before: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """The ``next`` of the page before."""


class AuditEntry(Told):
    """``file``, ``until`` and the like come along where an action has them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    number: int
    at: str | None = None
    by: dict[str, str] = Field(default={})
    action: str | None = None
    target: str | None = None
    ok: bool | None = None
    error: str | None = None


class Audit(Told):
    entries: list[AuditEntry]
    """Newest first."""
    next: int | None = None
    problems: list[str]
    """What shows that somebody changed the file otherwise than by appending."""


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    def read(query: AuditQuery) -> dict[str, Any]:
        page = site.audit_log.page(query.limit, query.before)
        return {"entries": page.entries, "next": page.next, "problems": site.audit_log.problems()}

    async def show(request: Request) -> Audit:
        return Audit.model_validate(await asyncio.to_thread(read, request.query(AuditQuery)))

    return [
        (operation("GET", "/audit", "auditLog", "What was changed, by whom", Audit, query=AuditQuery), show)
    ]
