"""Counts and times each request: tokens, time to first token, gaps between tokens, outcome."""

from __future__ import annotations

import time
from functools import partial

from gateway.metering.price import NANO, cost
from gateway.observe.metric_buffers import BufferedCounter
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import is_refusal, outcome_of, reason_of
from gateway.types import Call, Chunk, Usage


class MeterRecorder:
    __slots__ = (
        "_call",
        "_first",
        "_gaps",
        "_in_flight",
        "_inter_token",
        "_last",
        "_metrics",
        "_model",
        "_usage",
    )

    def __init__(self, metrics: Metrics, call: Call) -> None:
        self._metrics = metrics
        self._call = call
        self._model = call.model
        self._inter_token = metrics.inter_token[(call.model,)]
        self._in_flight: BufferedCounter | None = None
        self._usage: Usage | None = None
        self._first = self._last = 0.0
        self._gaps = 0

    async def begin(self) -> None:
        self._in_flight = self._metrics.in_flight[self._model, "waiting"]
        self._in_flight.inc()

    def chunk(self, chunk: Chunk) -> None:
        if not self._last and chunk.comment is None:
            self._first = self._last = time.perf_counter()
            if self._in_flight is not None:
                self._in_flight.dec()
                self._in_flight = self._metrics.in_flight[self._model, "running"]
                self._in_flight.inc()
        elif chunk.delta:
            self._gaps += 1
            # Chunks that came in one read leave in one write. The pace of a cached answer means nothing.
            if not chunk.more and self._call.cached is None and self._call.line is None:
                now = time.perf_counter()
                self._inter_token.observe(now - self._last)
                self._last = now
        if chunk.usage is not None:
            self._usage = chunk.usage

    def rendered(self, gaps: int, usage: Usage | None) -> None:
        """The whole answer, of ``gaps`` chunks after the first, is there at once."""
        self._first = time.perf_counter()
        self._gaps = gaps
        self._usage = usage

    def end(self, error: BaseException | None) -> None:
        call, metrics, model, usage = self._call, self._metrics, self._model, self._usage
        facts: dict[str, float | str | None] = {}
        status = 200
        if error is not None:
            status, facts["error"] = outcome_of(error)
            if is_refusal(error, call.receipt.attempts):
                metrics.refused[metrics.tenant(call.principal.tenant), reason_of(error)].inc()
        if self._in_flight is not None:
            self._in_flight.dec()
        if self._first:
            if call.cached is None and call.line is None:
                metrics.first_token[(model,)].observe(self._first - call.started)
                if metrics.tenants.enabled and (tenant := metrics.tenant(call.principal.tenant)):
                    metrics.tenant_first_token[(tenant,)].observe(self._first - call.started)
            facts["first_token"] = round(self._first - call.started, 6)
        # A cached answer is no backend's work.
        target = call.target
        backend = target.backend if target is not None and call.cached is None else ""
        metrics.requests[model, backend, str(status)].inc()
        if call.line is None:  # which may have waited for hours
            metrics.seconds[(model,)].observe(time.perf_counter() - call.started)
        if metrics.tenants.enabled and (tenant := metrics.tenant(call.principal.tenant)):
            metrics.tenant_requests[tenant, str(status)].inc()
        if usage is not None and call.cached is not None:
            self._save(call, call.cached, usage)
        if usage is not None:
            facts["prompt_tokens"] = usage.prompt
            facts["completion_tokens"] = usage.completion
            facts["cached_tokens"] = usage.cached
            if usage.cache_write:
                facts["cache_write_tokens"] = usage.cache_write
            facts["reasoning_tokens"] = usage.reasoning
        facts["chunks_after_first"] = self._gaps
        call.receipt.note("meter", **facts)

    def _save(self, call: Call, cache: str, usage: Usage) -> None:
        """What the answer took when it was made, which it did not take again."""
        self._metrics.cache_saved_tokens[cache, self._model].inc(usage.prompt + usage.completion)
        nanodollars = cost(call.policy, call.target, usage) if call.target is not None else 0
        if nanodollars:
            self._metrics.cache_saved_dollars[cache, self._model].inc(nanodollars / NANO)


def meter(metrics: Metrics) -> partial[MeterRecorder]:
    return partial(MeterRecorder, metrics)
