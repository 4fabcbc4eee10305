"""What models answer, before the caller or a cache has it."""

from __future__ import annotations

from gateway.guards.guards import Guards
from gateway.guards.streams import guarded
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunks, Handler, Stage


def guard_output(guards: Guards, metrics: Metrics) -> Stage:
    """A tenant without output guards passes untouched, and so do embeddings."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            applicable = guards.of(call.principal.tenant).output
            if not applicable or call.request.embeds:
                return following(call)
            return guarded(call, applicable, metrics, following)

        return handle

    return stage
