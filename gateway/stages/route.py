"""Chooses the target: one of the model's enabled targets, drawn by weight."""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from contextlib import aclosing

from gateway.errors import UnknownModel
from gateway.observe.metrics import Metrics
from gateway.types import Call, Candidate, Chunks, Handler, Stage


def route(enabled: Collection[str], metrics: Metrics) -> Stage:
    """``enabled`` names the backends that can be used at all."""

    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            model = call.model
            targets = [t for t in call.policy.models[model].targets if t.backend in enabled]
            if not targets:
                raise UnknownModel(
                    f"The model '{model}' is configured here, but none of its backends is enabled.",
                    param="model",
                )
            target = random.choices(targets, [t.weight for t in targets])[0]
            call.candidate = Candidate(model, target, target.timeouts or call.policy.models[model].timeouts)
            waited = time.perf_counter() - call.started
            metrics.queue.labels(model).observe(waited)
            call.receipt.note("route", backend=target.backend, model=target.model, after=round(waited, 6))
            async with aclosing(following(call)) as chunks:
                async for chunk in chunks:
                    yield chunk

        return handle

    return stage
