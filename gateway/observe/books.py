"""Where each request's cost is entered: the counters, and the ledger where there is one."""

from __future__ import annotations

from gateway.observe.ledger import Ledger
from gateway.observe.metrics import Metrics
from gateway.quota.price import NANO
from gateway.types import Call, Usage


class Books:
    def __init__(self, metrics: Metrics, ledger: Ledger | None) -> None:
        self._metrics = metrics
        self._ledger = ledger

    def record(self, call: Call, usage: Usage, cost_nanodollars: int, status: int, estimated: bool) -> None:
        if cost_nanodollars:
            self._metrics.cost.labels(call.principal.tenant, call.model).inc(cost_nanodollars / NANO)
        if self._ledger is not None:
            self._ledger.record(call, usage, cost_nanodollars, status, estimated)
