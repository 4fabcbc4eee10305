"""``/admin/api/caches``: have answers forgotten; what the semantic cache found, by day."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

from pydantic import Field

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Strict, Told
from gateway.admin.site import Site
from gateway.databases.database import DatabaseError
from gateway.errors import Overloaded
from gateway.metering.price import NANO
from gateway.observe.cache_days import FILE, read_cache_days
from gateway.policy.schema.values import Name
from gateway.web.operation import Operation


class Flush(Strict):
    tenant: Name


class Flushed(Told):
    tenant: str
    in_force: bool
    """Nothing that was cached for the tenant before is found any more."""


Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
"""Unix time, in seconds."""
MONTH = 30 * 86_400.0


class DaysQuery(Strict):
    by: Literal["tenant", "model"] | None = None
    since: Moment | None = None
    """From the beginning of its day; 30 days ago where it is not given."""
    until: Moment | None = None
    """To the end of its day; now where it is not given."""
    tenant: str | None = None


class CacheDayRow(Told):
    day: str
    """UTC's, as ``2027-01-31``."""
    mode: str
    """``on`` or ``shadow``."""
    tenant: str | None = None
    model: str | None = None
    lookups: int
    hits: int
    """What was served, or in shadow mode would have been."""
    hit_tokens: int
    """What those took that would have been served."""
    hit_usd: float
    refused: dict[str, int]
    """Look-ups that served nothing, by reason."""


class CacheDays(Told):
    rows: list[CacheDayRow]


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    async def flush(request: Request) -> Flushed:
        tenant = request.body(Flush).tenant
        result = await site.change(request.context, request.scope, do="flush", tenant=tenant)
        return Flushed(tenant=tenant, in_force=result.get("confirmed", False))

    async def days(request: Request) -> CacheDays:
        query = request.query(DaysQuery)
        since = time.time() - MONTH if query.since is None else query.since
        path = site.state_dir / FILE
        try:
            found = await asyncio.to_thread(
                read_cache_days, path, since=since, until=query.until, by=query.by, tenant=query.tenant
            )
        except DatabaseError as error:
            raise Overloaded(
                f"The caches' days cannot be read ({error}). Try again; if it stays so, check {path}.",
                retry_after=2.0,
            ) from None
        return CacheDays(
            rows=[
                CacheDayRow(
                    day=one.day,
                    mode=one.mode,
                    tenant=one.name if query.by == "tenant" else None,
                    model=one.name if query.by == "model" else None,
                    lookups=one.lookups,
                    hits=one.hits,
                    hit_tokens=one.hit_tokens,
                    hit_usd=one.hit_nanodollars / NANO,
                    refused=one.refused,
                )
                for one in found
            ]
        )

    about = "What the semantic cache found, or would have served, by day"
    return [
        (
            operation(
                *("GET", "/caches/days", "cacheDays", about, CacheDays), query=DaysQuery, errors=(503,)
            ),
            days,
        ),
        (
            operation(
                *("POST", "/caches/flush", "flushCaches", "Forget what was cached for a tenant", Flushed),
                body=Flush,
                errors=(409,),
            ),
            flush,
        ),
    ]
