"""Counts and times each request: tokens, time to first token, gaps between tokens, outcome."""

from __future__ import annotations

import time
from contextlib import aclosing

from gateway.observe.metrics import Metrics
from gateway.observe.outcome import is_refusal, outcome_of, reason_of
from gateway.types import Call, Chunks, Handler, Stage, Usage


def meter(metrics: Metrics) -> Stage:
    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            model = call.model
            in_flight = metrics.in_flight.labels(model, "waiting")
            inter_token = metrics.inter_token.labels(model)
            in_flight.inc()
            usage: Usage | None = None
            first = last = 0.0
            gaps = 0
            status, code = 200, None
            try:
                async with aclosing(following(call)) as chunks:
                    async for chunk in chunks:
                        if not last and chunk.comment is None:
                            first = last = time.perf_counter()
                            in_flight.dec()
                            in_flight = metrics.in_flight.labels(model, "running")
                            in_flight.inc()
                        elif chunk.delta:
                            gaps += 1
                            # Those that came together leave together. A cache's answers come at nobody's pace.
                            if not chunk.more and call.cached is None:
                                now = time.perf_counter()
                                inter_token.observe(now - last)
                                last = now
                        if chunk.usage is not None:
                            usage = chunk.usage
                        yield chunk
            except BaseException as error:
                status, code = outcome_of(error)
                if is_refusal(error, call.receipt.attempts):
                    metrics.refused.labels(metrics.tenant(call.principal.tenant), reason_of(error)).inc()
                raise
            finally:
                in_flight.dec()
                facts: dict[str, float | str | None] = {} if status == 200 else {"error": code}
                if first:
                    if call.cached is None:
                        metrics.first_token.labels(model).observe(first - call.started)
                    facts["first_token"] = round(first - call.started, 6)
                # A cache's answers are no backend's work.
                backend = call.target.backend if call.target and call.cached is None else ""
                metrics.requests.labels(model, backend, str(status)).inc()
                metrics.seconds.labels(model).observe(time.perf_counter() - call.started)
                if usage is not None:
                    facts["prompt_tokens"] = usage.prompt
                    facts["completion_tokens"] = usage.completion
                    facts["cached_tokens"] = usage.cached
                    if usage.cache_write:
                        facts["cache_write_tokens"] = usage.cache_write
                    facts["reasoning_tokens"] = usage.reasoning
                facts["chunks_after_first"] = gaps
                call.receipt.note("meter", **facts)

        return handle

    return stage
