"""Records what each request used and cost: in metrics, and in the ledger where there is one; by day, caches' finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from gateway.metering.bill import Bill, Charge
from gateway.metering.price import NANO
from gateway.observe.cache_days import CacheDays
from gateway.observe.ended import Ended
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.metrics import Metrics
from gateway.types import HOUSE, Call, Principal


class RequestAccounting(Protocol):
    """Who is told of a request that has ended."""

    def record(self, call: Call, ended: Ended) -> object: ...

    def record_for_house(self, call: Call, bill: Bill) -> object:
        """What was used on account of a line of a batch that had to give way."""
        ...


class Accounting:
    def __init__(
        self,
        metrics: Metrics,
        ledger: Ledger | None,
        blocked: Callable[[Call], object] | None = None,
        cache_days: CacheDays | None = None,
    ) -> None:
        """``blocked`` is told of requests that a guard refused, and of answers that one cut."""
        self._metrics = metrics
        self._ledger = ledger
        self._blocked = blocked
        self._cache_days = cache_days

    def record(self, call: Call, ended: Ended) -> None:
        """A request that has ended."""
        for charge in ended.bill.charges:
            self._count(call.principal, charge)
        if self._ledger is not None:
            self._ledger.record(ended)
        if self._blocked is not None and (
            ended.error == "content_policy_violation" or "cut" in ended.noted.get("guard_output", ())
        ):
            self._blocked(call)
        if self._cache_days is not None and "cache" in ended.noted:
            self._cache_days.record(call, ended.bill)

    def record_charges(self, call: Call, charges: Sequence[Charge]) -> None:
        """What was sent in addition to a request, on account of ``call.principal``."""
        for charge in charges:
            self._count(call.principal, charge)
        if self._ledger is not None and charges:
            self._ledger.record_charges(
                call.request_id, call.receipt.created, call.principal, charges, call.user_agent
            )

    def record_for_house(self, call: Call, bill: Bill) -> None:
        """What a line of a batch used that will run again: the gateway stopped it, or its server failed."""
        house = replace(call.principal, key_id="batch", tenant=HOUSE, tier=HOUSE)
        charges = [Charge(replace(one.upstream, purpose="attempt"), one.nanodollars) for one in bill.charges]
        request_id = f"{call.request_id}-{int(call.receipt.created * 1000):x}"
        for charge in charges:
            self._count(house, charge)
        if self._ledger is not None:
            self._ledger.record_charges(request_id, call.receipt.created, house, charges, call.user_agent)

    def record_refusal(
        self, request_id: str, principal: Principal | None, status: int, reason: str, *, is_question: bool
    ) -> None:
        """A request that was refused before it became a call. Only requests to models are in the ledger
        (``is_question``)."""
        self._metrics.refused.labels(
            self._metrics.tenant(principal.tenant if principal else ""), reason
        ).inc()
        if self._ledger is not None and principal is not None and is_question:
            self._ledger.record_refusal(request_id, principal, status, reason)

    def _count(self, principal: Principal, charge: Charge) -> None:
        upstream, metrics = charge.upstream, self._metrics
        usage, model = upstream.usage, upstream.model
        metrics.tokens[model, "in", upstream.purpose].pending += usage.prompt
        metrics.tokens[model, "out", upstream.purpose].pending += usage.completion
        if metrics.tenants.enabled and (tenant := metrics.tenant(principal.tenant)):
            metrics.tenant_tokens[tenant, "in"].inc(usage.prompt)
            metrics.tenant_tokens[tenant, "out"].inc(usage.completion)
        if usage.units is not None:
            metrics.units[model, usage.units.unit, upstream.purpose].inc(usage.units.amount)
        if charge.nanodollars:
            dollars = charge.nanodollars / NANO
            metrics.cost[metrics.tenant(principal.tenant), model, upstream.purpose].inc(dollars)
