"""Counts and times each request: tokens, time to first token, gaps between tokens, outcome."""

from __future__ import annotations

import time
from contextlib import aclosing

from gateway.observe.metrics import Metrics
from gateway.observe.outcome import outcome_of
from gateway.types import Call, Chunks, Handler, Stage, Usage


def meter(metrics: Metrics) -> Stage:
    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            model = call.model
            in_flight = metrics.in_flight.labels(model, "waiting")
            in_flight.inc()
            usage: Usage | None = None
            observe_gap = metrics.inter_token.labels(model).observe
            last = 0.0
            gaps = 0
            status = 200
            try:
                async with aclosing(following(call)) as chunks:
                    async for chunk in chunks:
                        if not last and chunk.comment is None:
                            last = time.perf_counter()
                            metrics.first_token.labels(model).observe(last - call.started)
                            call.receipt.note("meter", first_token=round(last - call.started, 6))
                            in_flight.dec()
                            in_flight = metrics.in_flight.labels(model, "running")
                            in_flight.inc()
                        elif chunk.delta:
                            gaps += 1
                            if not chunk.more:  # those that came together leave together
                                now = time.perf_counter()
                                observe_gap(now - last)
                                last = now
                        if chunk.usage is not None:
                            usage = chunk.usage
                        yield chunk
            except BaseException as error:
                ended = outcome_of(error)
                status = ended.status
                call.receipt.note("meter", error=ended.code)
                raise
            finally:
                in_flight.dec()
                backend = call.target.backend if call.target else ""
                metrics.requests.labels(model, backend, str(status)).inc()
                metrics.seconds.labels(model).observe(time.perf_counter() - call.started)
                if usage is not None:
                    metrics.tokens.labels(model, "in").inc(usage.prompt)
                    metrics.tokens.labels(model, "out").inc(usage.completion)
                    call.receipt.note(
                        "meter",
                        prompt_tokens=usage.prompt,
                        completion_tokens=usage.completion,
                        cached_tokens=usage.cached,
                        reasoning_tokens=usage.reasoning,
                    )
                call.receipt.note("meter", chunks_after_first=gaps)

        return handle

    return stage
