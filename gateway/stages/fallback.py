"""Tries a call's candidates in order until the caller has a whole answer, even if one must continue another's."""

from __future__ import annotations

from gateway.errors import BadRequest, Overloaded, RateLimited, Upstream
from gateway.fallback.failover import Deferred, Failover
from gateway.fallback.health import HealthRegistry
from gateway.observe.metrics import Metrics
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.types import Call, Chunks, Handler, Stage


def fallback(
    health: HealthRegistry,
    metrics: Metrics,
    telemetry: Telemetry | None = None,
    deferred: Deferred | None = None,
) -> Stage:
    """``health`` is the worker's own, and stays the same when the policy changes."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            chunks = attempted(call)
            if call.splice is not None:
                call.splice.made(chunks)
            return chunks

        async def attempted(call: Call) -> Chunks:
            failover = Failover(call, following, health, metrics, telemetry, deferred)
            try:
                while not failover.answered:
                    attempt = failover.next_attempt()
                    stream = attempt.filter
                    async with failover.running(attempt) as chunks:
                        async for chunk in chunks:
                            if stream.passthrough:
                                attempt.add(chunk)
                                yield chunk
                                continue
                            for ready in failover.filtered(attempt, chunk):
                                yield ready
                        for ready in stream.end():
                            failover.delivers(attempt)
                            yield ready
                    if not failover.answered:
                        await failover.pause()
            except (Upstream, RateLimited, Overloaded, BadRequest) as error:
                if (instead := failover.instead(error)) is not None:
                    raise instead from None
                # Their way through the frames below is of no use to anybody, and these frames hold the error in turn.
                error.__traceback__ = None
                raise
            finally:
                failover.end()

        return handle

    return stage
