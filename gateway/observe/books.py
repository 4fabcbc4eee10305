"""Where each request's cost is entered: the counters, and the ledger where there is one."""

from __future__ import annotations

from gateway.observe.ledger import Ledger
from gateway.observe.metrics import Metrics
from gateway.quota.price import NANO
from gateway.types import Call, Principal, Usage


class Books:
    def __init__(self, metrics: Metrics, ledger: Ledger | None) -> None:
        self._metrics = metrics
        self._ledger = ledger

    def record(
        self,
        call: Call,
        usage: Usage,
        cost_nanodollars: int,
        status: int,
        estimated: bool,
        error: str | None = None,
    ) -> None:
        """A request that has ended; ``error`` is why it failed."""
        if cost_nanodollars:
            self._metrics.cost.labels(call.principal.tenant, call.model).inc(cost_nanodollars / NANO)
        if self._ledger is not None:
            self._ledger.record(call, usage, cost_nanodollars, status, estimated, error)

    def refuse(
        self, request_id: str, principal: Principal | None, status: int, reason: str, *, is_question: bool
    ) -> None:
        """A request that was refused before it became a call. Only a caller's questions are in the ledger."""
        self._metrics.refused.labels(principal.tenant if principal else "", reason).inc()
        if self._ledger is not None and principal is not None and is_question:
            self._ledger.refuse(request_id, principal, status, reason)
