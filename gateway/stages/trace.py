"""The request's place in a distributed trace, its receipt, and one log line when it ends."""

from __future__ import annotations

import random
import time
from functools import partial

from gateway.errors import GatewayError
from gateway.observe.outcome import outcome_of, reason_of
from gateway.observe.receipts import Receipts
from gateway.observe.telemetry.request_spans import content_attributes, decision_spans, request_span
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.observe.tracing import close_request, trace_context
from gateway.spans import Trace
from gateway.types import Call


class TraceRecorder:
    """Continues the caller's trace, or begins one, and sends it upstream."""

    __slots__ = ("_call", "_flags", "_receipts", "_trace_id")

    chunk = None

    def __init__(self, receipts: Receipts, call: Call) -> None:
        self._receipts = receipts
        self._call = call
        self._trace_id, self._flags = trace_context(call.headers.get("traceparent", ""))

    async def begin(self) -> None:
        parent = f"00-{self._trace_id}-{random.getrandbits(64):016x}-{self._flags}"
        self._call.headers = {**self._call.headers, "traceparent": parent}

    def end(self, error: BaseException | None) -> tuple[int, str | None]:
        """The status that the request has ended with, and why where it failed."""
        status, reason = 200, None
        if error is not None:
            status, reason = outcome_of(error).status, reason_of(error)
            if isinstance(error, GatewayError):
                error.logged = True
        close_request(self._receipts, self._call, self._trace_id, status, reason)
        return status, reason


class SampledRecorder(TraceRecorder):
    """The same, and its spans where the request is sampled."""

    __slots__ = ("_trace",)

    def __init__(self, receipts: Receipts, telemetry: Telemetry, call: Call) -> None:
        super().__init__(receipts, call)
        parent = call.headers.get("traceparent", "")
        self._trace = telemetry.trace(self._trace_id, parent, call.headers.get("tracestate", ""))
        if self._trace is not None:
            call.trace = self._trace
            self._trace.enter(
                "quota", call.receipt.notes
            )  # which begins after this, and before all other stages

    async def begin(self) -> None:
        if self._trace is None:
            self._flags = "00"
            await super().begin()
        else:
            parent = self._trace.traceparent(self._trace.span_id)
            self._call.headers = {**self._call.headers, "traceparent": parent}

    def end(self, error: BaseException | None) -> tuple[int, str | None]:
        status, reason = super().end(error)
        if self._trace is not None:
            self._export(self._trace, status, reason)
        return status, reason

    def _export(self, trace: Trace, status: int, reason: str | None) -> None:
        call, end = self._call, time.perf_counter()
        trace.leave(_decided(call, end), call.receipt.notes)
        request = request_span(trace, call, status, reason, end)
        if trace.content:
            told = content_attributes(trace.asked, trace.answer)
            answered = next((span for span in reversed(trace.attempts) if span.error is None), request)
            answered.attributes.update(told)
        trace.close([request, *decision_spans(trace, call, end)])


def _decided(call: Call, end: float) -> float:
    """When the last stage that the request came to had decided: with the answer's first chunk, or its end."""
    first = call.receipt.notes.get("meter", {}).get("first_token")
    return end if first is None else call.started + float(first)


def trace(
    receipts: Receipts, telemetry: Telemetry | None = None
) -> partial[TraceRecorder] | partial[SampledRecorder]:
    if telemetry is None:
        return partial(TraceRecorder, receipts)
    return partial(SampledRecorder, receipts, telemetry)
