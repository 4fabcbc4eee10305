"""Counts and times each request: tokens, time to first token, gaps between tokens, outcome."""

from __future__ import annotations

import time
from contextlib import aclosing

from gateway.observe.metrics import Metrics
from gateway.observe.outcome import outcome_of
from gateway.types import Call, Chunks, Handler, Stage, Usage


def meter(metrics: Metrics) -> Stage:
    meters: dict[str, _Meters] = {}

    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            model = call.model
            meters_ = meters.get(model)
            if meters_ is None:
                meters_ = meters[model] = _Meters(metrics, model)
            in_flight = meters_.waiting
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
                            in_flight = meters_.running
                            in_flight.inc()
                        elif chunk.delta:
                            gaps += 1
                            if not chunk.more:  # those that came together leave together
                                now = time.perf_counter()
                                meters_.inter_token.observe(now - last)
                                last = now
                        if chunk.usage is not None:
                            usage = chunk.usage
                        yield chunk
            except BaseException as error:
                status, code = outcome_of(error)
                raise
            finally:
                in_flight.dec()
                facts: dict[str, float | str | None] = {} if status == 200 else {"error": code}
                if first:
                    meters_.first_token.observe(first - call.started)
                    facts["first_token"] = round(first - call.started, 6)
                backend = call.target.backend if call.target else ""
                metrics.requests.labels(model, backend, str(status)).inc()
                meters_.seconds.observe(time.perf_counter() - call.started)
                if usage is not None:
                    meters_.tokens_in.inc(usage.prompt)
                    meters_.tokens_out.inc(usage.completion)
                    facts["prompt_tokens"] = usage.prompt
                    facts["completion_tokens"] = usage.completion
                    facts["cached_tokens"] = usage.cached
                    facts["reasoning_tokens"] = usage.reasoning
                facts["chunks_after_first"] = gaps
                call.receipt.note("meter", **facts)

        return handle

    return stage


class _Meters:
    """One model's figures."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self.waiting = metrics.in_flight.labels(model, "waiting")
        self.running = metrics.in_flight.labels(model, "running")
        self.first_token = metrics.first_token.labels(model)
        self.inter_token = metrics.inter_token.labels(model)
        self.seconds = metrics.seconds.labels(model)
        self.tokens_in = metrics.tokens.labels(model, "in")
        self.tokens_out = metrics.tokens.labels(model, "out")
