"""The order in which a request passes the stages, outermost first. This list is the only place that says it."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.cascade.cascade import Judge
from gateway.errors import Internal
from gateway.observe.metrics import Metrics
from gateway.observe.receipts import Receipts
from gateway.quota.quotas import Quotas
from gateway.stages.cascade import cascade
from gateway.stages.meter import meter
from gateway.stages.quota import quota
from gateway.stages.route import route
from gateway.stages.trace import trace
from gateway.types import Backend, Call, Chunks, Handler


def build(
    backends: Mapping[str, Backend], *, metrics: Metrics, receipts: Receipts, quotas: Quotas, judge: Judge
) -> Handler:
    """The stages folded over the backends: the handler that answers a call."""
    stages = [
        trace(receipts),
        meter(metrics),
        quota(quotas),
        cascade(judge),
        route(backends.keys(), metrics),
    ]
    handler = dispatch(backends)
    for stage in reversed(stages):
        handler = stage(handler)
    return handler


def dispatch(backends: Mapping[str, Backend]) -> Handler:
    """The innermost handler: the target's own backend."""

    def handle(call: Call) -> Chunks:
        if call.target is None:
            raise Internal("The request reached the backends without a target.")
        return backends[call.target.backend].stream(call, call.target)

    return handle
