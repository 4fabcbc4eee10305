"""Copies a share of the calls to a shadow model, unnoticed by the caller."""

from __future__ import annotations

from gateway.observe.metrics import Metrics
from gateway.routing.shadow import Shadows
from gateway.types import Call, Chunks, Handler, Stage


def shadow(shadows: Shadows, metrics: Metrics, account: Stage = lambda following: following) -> Stage:
    """``account`` is the part of the pipeline that copies pass: quotas of their payer, and the steps of a cascade."""

    def count(model: str, status: str) -> None:
        metrics.shadow.labels(model, status).inc()

    def stage(following: Handler) -> Handler:
        accounted = account(following)

        def handle(call: Call) -> Chunks:
            rule = call.policy.models[call.model].shadow
            if rule is not None and call.request.api is None:
                shadows.send(call, rule, accounted, count)
            return following(call)

        return handle

    return stage
