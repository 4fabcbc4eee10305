"""``/admin/api/tenants``: each tenant's limits, and what counts against them now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Told
from gateway.admin.site import Site, ledger_database, unreadable
from gateway.databases.database import Database, DatabaseError
from gateway.metering.price import NANO
from gateway.metering.window_usage import WindowUsage
from gateway.observe.ledger.usage_query import UsageFilter, read_usage, read_window_usage
from gateway.policy.schema import DEFAULT_TIER, Policy, Tenant
from gateway.quota.limits import counted
from gateway.residency import stays_in
from gateway.types import Principal
from gateway.web.operation import Operation

SECONDS_TO_WRITE = 1.0
"""For what a worker has settled and not yet written into the ledger."""


class LimitState(Told):
    owner: str
    """``tenant``, or ``tier`` for one that a whole tier shares."""
    quantity: str
    """``requests``, ``tokens``, ``dollars`` or ``concurrent``."""
    window: str
    """``minute``, ``day``, ``month`` or ``now``."""
    maximum: float
    used: float
    share: float
    """Of the maximum: more than 1 where it was exceeded."""
    resets: float
    """Seconds until none of it counts any more, if nothing is added."""


class TenantState(Told):
    name: str
    tier: str
    keys: int
    local_only: bool
    residency: tuple[str, ...]
    """Regions in which the tenant's own entry says that its content stays."""
    stays_in: list[str] | None = None
    """Those that the policy's residency leaves of them; left out: anywhere."""
    limits: list[LimitState]
    today_usd: float
    month_usd: float
    today_requests: int
    month_requests: int


class Tenants(Told):
    tenants: list[TenantState]


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> Tenants:
        policy = request.context.runtime.policy
        ledger = ledger_database(request.context, site)
        try:
            spent = await asyncio.to_thread(_spent, ledger)
            names = dict.fromkeys((*policy.tenants, *(key.tenant for key in policy.keys), *spent["month"]))
            used = await _asked(site, list(names))
            recorded: Mapping[str, int] | None = None
            if policy.store == "memory" and not site.peers.alone:
                # They have written what they told.
                spent = await asyncio.to_thread(_spent, ledger)
                recorded = await asyncio.to_thread(_recorded, ledger, spent, used.values())
        except DatabaseError as error:
            raise unreadable(ledger, error) from None
        limits: dict[str, list[LimitState]] = {}
        for (name, key), one in used.items():
            limits.setdefault(name, []).append(one.state(None if recorded is None else recorded.get(key, 0)))
        day, month = spent["day"], spent["month"]
        return Tenants(
            tenants=[
                TenantState(
                    name=name,
                    tier=_tier(policy, name),
                    keys=sum(key.tenant == name for key in policy.keys_in_force),
                    local_only=(known := policy.tenants.get(name, _UNKNOWN)).local_only,
                    residency=known.residency,
                    stays_in=stays_in(policy.residency, known.residency),
                    limits=limits.get(name, []),
                    today_usd=day.get(name, _NOTHING)["cost_nanodollars"] / NANO,
                    month_usd=month.get(name, _NOTHING)["cost_nanodollars"] / NANO,
                    today_requests=day.get(name, _NOTHING)["requests"],
                    month_requests=month.get(name, _NOTHING)["requests"],
                )
                for name in names
                if name
            ]
        )

    about = "Limits, and what counts against them"
    return [(operation("GET", "/tenants", "listTenants", about, Tenants, errors=(503,)), show)]


_UNKNOWN = Tenant()
_NOTHING = {"cost_nanodollars": 0, "requests": 0}


async def limits_used(site: Site, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What counts against the limits of tenants by this worker's counters, for the others.

    Counters in memory are each worker's own; those in Redis are the same for all.
    """
    runtime = site.current()
    shared = runtime.policy.store != "memory"
    found = {}
    for name in asked.get("tenants", ()):
        principal = Principal("", str(name), tier=_tier(runtime.policy, str(name)))
        found[name] = [
            [
                *(limit.key, limit.scope, limit.quantity, limit.window, limit.maximum),
                *(resets, used, *runtime.quotas.own(limit)),
            ]
            for limit, used, resets in await runtime.quotas.used(runtime.policy, principal)
        ]
    if not shared and runtime.ledger is not None:
        # What is settled here is to be in the ledger by the time at which the asking worker reads it.
        await asyncio.to_thread(runtime.ledger.wait_drained, SECONDS_TO_WRITE)
    return {"shared": shared, "limits": found}


@dataclass(slots=True)
class _Used:
    """Of one limit, in all workers."""

    owner: str
    quantity: str
    window: str
    maximum: int
    workers: list[tuple[float, float, float]] = field(default_factory=list)
    """Of each: what it counts; and how much of that it has settled since it started, and holds."""
    resets: float = 0.0

    def state(self, recorded: int | None) -> LimitState:
        """``recorded``: of several workers, what the ledger has of a day or month, also from one that is gone."""
        used, settled, held = map(sum, zip(*self.workers, strict=True))
        if recorded is not None and self.window in ("day", "month"):
            used = max(recorded, settled) + held
        unit = NANO if self.quantity == "dollars" else 1
        return LimitState(
            owner=self.owner,
            quantity=self.quantity,
            window=self.window,
            maximum=self.maximum / unit,
            used=used / unit,
            share=used / self.maximum if self.maximum else 1.0,
            resets=self.resets,
        )


async def _asked(site: Site, names: list[str]) -> dict[tuple[str, str], _Used]:
    """By tenant and limit."""
    answers = await site.peers.ask({"do": "limits", "tenants": names})
    if answers and answers[0].get("shared"):
        answers = answers[:1]
    found: dict[tuple[str, str], _Used] = {}
    for answer in answers:
        for name, limits in answer.get("limits", {}).items():
            for key, owner, quantity, window, maximum, resets, *counts in limits:
                one = found.setdefault((name, key), _Used(owner, quantity, window, maximum))
                one.resets = max(one.resets, resets)
                one.workers.append(tuple(counts))
    return found


_Spent = Mapping[Literal["day", "month"], Mapping[str, Mapping[str, Any]]]
"""Rows by tenant."""


def _spent(ledger: Database) -> _Spent:
    now = time.time()
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    day, month = (
        {row["tenant"]: row for row in read_usage(ledger, UsageFilter(since.timestamp(), now), ("tenant",))}
        for since in (today, today.replace(day=1))
    )
    return {"day": day, "month": month}


def _recorded(ledger: Database, spent: _Spent, used: Iterable[_Used]) -> Mapping[str, int]:
    """What the ledger has of each limit by the day or month: of tenants by its sums, of tiers row by row."""
    if any(one.owner == "tier" and one.window in ("day", "month") for one in used):
        usage = read_window_usage(ledger, time.time())
    else:
        usage = [
            WindowUsage(
                *(tenant, "", "", window),
                row["prompt_tokens"] + row["completion_tokens"],
                row["cost_nanodollars"],
            )
            for window, rows in spent.items()
            for tenant, row in rows.items()
        ]
    return {key: amount for (key, _), amount in counted(usage).items()}


def _tier(policy: Policy, name: str) -> str:
    tenant = policy.tenants.get(name)
    return (tenant.tier if tenant is not None else None) or DEFAULT_TIER
