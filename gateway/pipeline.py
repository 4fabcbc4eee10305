"""The order in which a request passes the stages, outermost first. This list is the only place that says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.admission.pool import Pools
from gateway.cascade.cascade import Judge
from gateway.errors import Internal
from gateway.fallback.switchboard import Switchboard
from gateway.observe.books import Books
from gateway.observe.metrics import Metrics
from gateway.observe.receipts import Receipts
from gateway.quota.quotas import Quotas
from gateway.routing.router import Router
from gateway.routing.shadow import Shadows
from gateway.stages.cascade import cascade
from gateway.stages.fallback import fallback
from gateway.stages.meter import meter
from gateway.stages.queue import queue
from gateway.stages.quota import quota
from gateway.stages.route import route
from gateway.stages.shadow import shadow
from gateway.stages.trace import trace
from gateway.types import Backend, Call, Chunks, Handler


@dataclass(frozen=True, slots=True)
class Parts:
    """What the stages work with."""

    backends: Mapping[str, Backend]
    """Those that are enabled, by name."""
    metrics: Metrics
    receipts: Receipts
    books: Books
    quotas: Quotas
    judge: Judge
    shadows: Shadows
    router: Router
    switchboard: Switchboard
    pools: Pools


def build(parts: Parts) -> Handler:
    """The stages folded over the backends: the handler that answers a call."""
    stages = [
        trace(parts.receipts),
        meter(parts.metrics),
        quota(parts.quotas, parts.books),
        cascade(parts.judge),
        shadow(parts.shadows, parts.metrics),
        route(parts.router),
        fallback(parts.switchboard, parts.metrics),
        queue(parts.pools, parts.metrics),
    ]
    handler = dispatch(parts.backends)
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
