"""Copies a share of the calls to a shadow model, unnoticed by the caller."""

from __future__ import annotations

from typing import Protocol

from gateway.observe.metrics import Metrics
from gateway.recording.kept_answer import KeptAnswer, keeping
from gateway.routing.shadow import Shadows, Watcher
from gateway.types import Call, Chunks, Handler, Stage


class Compared(Watcher, Protocol):
    """Wants both answers."""

    @property
    def answer(self) -> KeptAnswer: ...


class Compares(Protocol):
    def begin_copy(self, call: Call) -> Compared | None:
        """None where the two are not compared."""
        ...


def shadow(
    shadows: Shadows,
    metrics: Metrics,
    account: Stage = lambda following: following,
    compares: Compares | None = None,
) -> Stage:
    """``account`` is the part of the pipeline that copies pass: quotas of their payer, and the steps of a cascade."""

    def count(model: str, status: str) -> None:
        metrics.shadow.labels(model, status).inc()

    def begin(call: Call) -> Compared | None:
        return None if compares is None else compares.begin_copy(call)

    def stage(following: Handler) -> Handler:
        accounted = account(following)

        def handle(call: Call) -> Chunks:
            rule = call.policy.models[call.model].shadow
            if rule is not None and call.request.api is None:
                compared = shadows.send(call, rule, accounted, count, begin)
                if compared is not None:
                    return keeping(call, compared.answer, following)
            return following(call)

        return handle

    return stage
