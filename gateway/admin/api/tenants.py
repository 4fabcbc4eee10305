"""``/admin/api/tenants``: each tenant's limits, and what counts against them now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Told
from gateway.admin.ledger import ledger_database, unreadable
from gateway.admin.site import Site
from gateway.databases.database import DatabaseError
from gateway.metering.price import NANO
from gateway.observe.usage_query import UsageFilter, read_usage
from gateway.policy.schema import DEFAULT_TIER, Policy, Tenant
from gateway.residency import stays_in
from gateway.types import Principal
from gateway.web.operation import Operation


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
        now = time.time()
        today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        ledger = ledger_database(request.context, site)

        def spent() -> list[dict[str, dict[str, Any]]]:
            return [
                {
                    row["tenant"]: row
                    for row in read_usage(ledger, UsageFilter(since.timestamp(), now), ("tenant",))
                }
                for since in (today, today.replace(day=1))
            ]

        try:
            day, month = await asyncio.to_thread(spent)
        except DatabaseError as error:
            raise unreadable(ledger, error) from None
        names = dict.fromkeys((*policy.tenants, *(key.tenant for key in policy.keys), *month))
        used = await _used(site, list(names))
        return Tenants(
            tenants=[
                TenantState(
                    name=name,
                    tier=_tier(policy, name),
                    keys=sum(key.tenant == name for key in policy.keys_in_force),
                    local_only=(known := policy.tenants.get(name, _UNKNOWN)).local_only,
                    residency=known.residency,
                    stays_in=stays_in(policy.residency, known.residency),
                    limits=used.get(name, []),
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

    Counters in memory are each worker's own and are added up, but for what each has from the ledger; those in Redis are
    the same for all.
    """
    runtime = site.current()
    found = {}
    for name in asked.get("tenants", ()):
        principal = Principal("", str(name), tier=_tier(runtime.policy, str(name)))
        found[name] = [
            [
                limit.scope,
                limit.quantity,
                limit.window,
                limit.maximum,
                used,
                resets,
                runtime.quotas.told(limit),
            ]
            for limit, used, resets in await runtime.quotas.used(runtime.policy, principal)
        ]
    return {"shared": runtime.policy.store != "memory", "limits": found}


async def _used(site: Site, names: list[str]) -> dict[str, list[LimitState]]:
    answers = await site.peers.ask({"do": "limits", "tenants": names})
    if answers and answers[0].get("shared"):
        answers = answers[:1]
    sums: dict[tuple[str, str, str, str], list[float]] = {}
    told: dict[tuple[str, str, str, str], float] = {}
    for answer in answers:
        for name, limits in answer.get("limits", {}).items():
            for owner, quantity, window, maximum, used, resets, of_ledger in limits:
                one = (name, owner, quantity, window)
                entry = sums.setdefault(one, [maximum, 0.0, 0.0])
                entry[1] += max(0, used - of_ledger)
                entry[2] = max(entry[2], resets)
                told[one] = max(told.get(one, 0), of_ledger)
    found: dict[str, list[LimitState]] = {}
    for (name, owner, quantity, window), (maximum, since, resets) in sums.items():
        used = since + told[name, owner, quantity, window]
        unit = NANO if quantity == "dollars" else 1
        found.setdefault(name, []).append(
            LimitState(
                owner=owner,
                quantity=quantity,
                window=window,
                maximum=maximum / unit,
                used=used / unit,
                share=used / maximum if maximum else 1.0,
                resets=resets,
            )
        )
    return found


def _tier(policy: Policy, name: str) -> str:
    tenant = policy.tenants.get(name)
    return (tenant.tier if tenant is not None else None) or DEFAULT_TIER
