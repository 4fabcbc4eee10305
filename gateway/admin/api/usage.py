"""``/admin/api/usage``: requests, tokens and dollars, by whom and over time; as JSON or CSV."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Reply, Request, Strict, Told
from gateway.admin.site import Site, ledger_database, unreadable
from gateway.databases.database import DatabaseError
from gateway.databases.tables import HOUR
from gateway.metering.price import NANO
from gateway.observe.ledger.usage_detail import read_any_usage
from gateway.observe.ledger.usage_query import GROUPS, SUMS, Group, Interval, UsageFilter
from gateway.text.csv_cell import csv_cell
from gateway.web.operation import Operation

CSV = "text/csv"
OTHERS = "(others)"
MONTH = 30 * 86_400.0

Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
"""Unix time, in seconds."""


class UsageQuery(Strict):
    by: Annotated[tuple[Group, ...], Field(max_length=len(GROUPS))] = ()
    interval: Interval | None = None
    since: Moment | None = None
    """From the beginning of its hour; 30 days ago where it is not given."""
    until: Moment | None = None
    """To the end of its hour; now where it is not given."""
    tenant: str | None = None
    key: str | None = None
    model: str | None = None
    backend: str | None = None
    user_agent: str | None = None
    purpose: str | None = None
    reason: str | None = None
    user: str | None = None
    """The hash of an end user, as the ledger has it."""
    tag: str | None = None
    finish_reason: str | None = None
    experiment: str | None = None
    arm: str | None = None
    top: Annotated[int, Field(ge=1, le=100)] | None = None
    """Of the first ``by``, only so many: those that cost, or ask, most in the whole time. The others are one,
    ``(others)``."""
    format: Literal["json", "csv"] = "json"


class UsageRow(Told):
    start: int | None = None
    """When the interval begins, in Unix time (UTC's hours, days and months); in CSV as ISO 8601 has it."""
    tenant: str | None = None
    key: str | None = None
    model: str | None = None
    backend: str | None = None
    user_agent: str | None = None
    purpose: str | None = None
    reason: str | None = None
    user: str | None = None
    tag: str | None = None
    """A request with several counts under each."""
    finish_reason: str | None = None
    experiment: str | None = None
    arm: str | None = None
    requests: int
    errors: int
    refused: int
    prompt_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost_nanodollars: int
    usd: float


class Usage(Told):
    since: int
    until: int
    """What is told covers whole hours, from ``since`` to before ``until``."""
    rows: list[UsageRow]


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> Usage | Reply:
        query = request.query(UsageQuery)
        now = time.time()
        where = _filter(query, now)
        ledger = ledger_database(request.context, site)
        try:
            found = await asyncio.to_thread(read_any_usage, ledger, where, query.by, query.interval)
        except DatabaseError as error:
            raise unreadable(ledger, error) from None
        if query.top is not None and query.by:
            found = top_of(found, query.by, query.top)
        rows = [UsageRow(**row, usd=row["cost_nanodollars"] / NANO) for row in found]
        if query.format == "csv":
            return _csv(query, rows)
        return Usage(
            since=int(where.since // HOUR * HOUR), until=int(-(-where.until // HOUR) * HOUR), rows=rows
        )

    about = "Requests, tokens and dollars, by whom and over time"
    return [
        (
            operation(
                *("GET", "/usage", "usage", about, Usage), query=UsageQuery, errors=(503,), others={CSV: None}
            ),
            show,
        )
    ]


def top_of(rows: list[dict[str, Any]], by: tuple[Group, ...], top: int) -> list[dict[str, Any]]:
    """``rows`` with all but the ``top`` values of the first group added up under the name ``OTHERS``."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        entry = sums.setdefault(row[by[0]], [0, 0])
        entry[0] += row["cost_nanodollars"]
        entry[1] += row["requests"]
    if len(sums) <= top:
        return rows
    kept = set(sorted(sums, key=lambda name: sums[name], reverse=True)[:top])
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        name = row[by[0]] if row[by[0]] in kept else OTHERS
        key = (row.get("start"), name, *(row[group] for group in by[1:]))
        into = found.get(key)
        if into is None:
            found[key] = {**row, by[0]: name}
            continue
        for one in SUMS:
            into[one] += row[one]
    return list(found.values())


def _filter(query: UsageQuery, now: float) -> UsageFilter:
    equal = tuple((group, value) for group in GROUPS if (value := getattr(query, group)) is not None)
    until = now if query.until is None else query.until
    return UsageFilter(until - MONTH if query.since is None else query.since, until, equal)


def _csv(query: UsageQuery, rows: list[UsageRow]) -> Reply:
    groups = [*(["start"] if query.interval else []), *query.by]
    sums = [name for name in UsageRow.model_fields if name not in ("start", *GROUPS)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([*groups, *sums])
    for row in rows:
        writer.writerow(
            [*(_cell(name, getattr(row, name)) for name in groups), *(getattr(row, name) for name in sums)]
        )
    disposition = (b"content-disposition", b'attachment; filename="usage.csv"')
    return Reply(text.getvalue().encode(), "text/csv; charset=utf-8", [disposition])


def _cell(name: str, value: Any) -> Any:
    if name == "start":
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return csv_cell(value)
