"""``/admin/api/drift``: what differs from the same hour of earlier weeks, and how."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Told
from gateway.databases.database import DatabaseError
from gateway.drift.measures import MEASURES
from gateway.drift.shown import Shown, shown
from gateway.drift.table import DAY, DriftTable, FoundDrift
from gateway.errors import Overloaded
from gateway.metering.price import NANO
from gateway.runtime.drift import Drift
from gateway.web.operation import Operation

_OVER = 7 * DAY
"""Seconds for which one that is over is shown."""
_MOST = 40


class Bar(Told):
    name: str
    before: float
    """Share of what there was at these hours of the four weeks before."""
    now: float
    """Share of what there was in the last six hours."""


class DriftSeen(Told):
    model: str
    route: str
    measure: str
    kind: str
    """``number``, ``position``, ``share`` or ``kind`` (by name)."""
    name: str | None = None
    """Of a kind, the name whose share changed most."""
    since: int
    """The hour in which it was found, in Unix time."""
    until: int | None = None
    """The hour from which on it was over."""
    test: str
    """By which it was found: ``psi`` or ``cusum``."""
    psi: float
    before: float | None = None
    """A median or a share, when it was found; cost in dollars."""
    now: float | None = None
    hours: list[float | None]
    """The same by the hour, up to the last one that was judged."""
    bars: list[Bar]


class DriftList(Told):
    enabled: bool
    judged_until: int | None = None
    """The last hour that was judged, in Unix time."""
    measures: int
    """Of all models and routes that were judged."""
    settled: int
    """Of these, which are known well enough for a drift to be told."""
    drifts: list[DriftSeen]
    """Newest first."""


def operations(drift: Drift) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> DriftList:
        table = drift.table
        if table is None:
            return DriftList(enabled=False, measures=0, settled=0, drifts=[])
        try:
            return await asyncio.to_thread(_list, table)
        except DatabaseError as error:
            raise Overloaded(f"Drifts cannot be read now ({error}). Try again.", retry_after=2.0) from None

    about = "What models are asked and do otherwise than at this hour of earlier weeks"
    return [(operation("GET", "/drift", "listDrifts", about, DriftList, errors=(503,)), show)]


def _list(table: DriftTable) -> DriftList:
    until = table.judged_until()
    usual = [one for measures in table.usual().values() for one in measures.values()]
    found = table.found(until - _OVER) if until is not None else []
    return DriftList(
        enabled=True,
        judged_until=until,
        measures=len(usual),
        settled=sum(one.is_settled for one in usual),
        drifts=[
            _seen(one, shown(table, one, until or 0)) for one in found[:_MOST] if one.measure in MEASURES
        ],
    )


def _seen(one: FoundDrift, picture: Shown) -> DriftSeen:
    facts, unit = one.facts, NANO if one.measure == "cost" else 1
    return DriftSeen(
        model=one.model,
        route=one.route,
        measure=one.measure,
        kind=MEASURES[one.measure],
        name=facts.get("name"),
        since=one.since,
        until=one.until,
        test=facts["test"],
        psi=facts["psi"],
        before=_in(unit, facts["before"]),
        now=_in(unit, facts["now"]),
        hours=[_in(unit, value) for _, value in picture.hours],
        bars=[_bar(unit, *bar) for bar in picture.bars],
    )


def _in(unit: int, value: float | None) -> float | None:
    return value / unit if value is not None else None


def _bar(unit: int, name: Any, before: float, now: float) -> Bar:
    return Bar(name=name if unit == 1 else f"{float(name) / unit:.3g}", before=before, now=now)
