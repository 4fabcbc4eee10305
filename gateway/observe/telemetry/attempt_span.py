"""One attempt as a span of kind CLIENT, with the conventions' attributes of an inference."""

from __future__ import annotations

import asyncio
import time

from gateway.observe.outcome import reason_of
from gateway.observe.telemetry.conventions import operation, request_attributes, usage_attributes
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.spans import Attributes, Span, Trace, new_span_id
from gateway.types import Call, Chunk, Usage

_LONGEST = 256
"""Characters of what a server says of itself."""


class AttemptSpan:
    """From the moment when the request is handed to its backend. The server continues the trace from this span."""

    __slots__ = (
        "_began",
        "_call",
        "_finished",
        "_first",
        "_id",
        "_response",
        "_telemetry",
        "_trace",
        "_usage",
    )

    def __init__(self, telemetry: Telemetry, call: Call, trace: Trace) -> None:
        self._telemetry = telemetry
        trace.leave(time.perf_counter(), call.receipt.notes)
        self._call = call
        self._trace = trace
        self._id = new_span_id()
        self._began = time.perf_counter()
        self._first: float | None = None
        self._usage: Usage | None = None
        self._finished: dict[int, str] = {}
        self._response: Attributes = {}
        headers = {**call.headers, "traceparent": trace.traceparent(self._id)}
        if trace.state:
            headers["tracestate"] = trace.state
        call.headers = headers

    def add(self, chunk: Chunk) -> None:
        if chunk.comment is not None:
            return
        if self._first is None:
            self._first = time.perf_counter()
            self._identify(chunk)
        if chunk.finish_reason is not None:
            self._finished[chunk.index] = chunk.finish_reason
        if chunk.usage is not None:
            self._usage = chunk.usage

    def end(self, error: BaseException | None) -> None:
        """``error`` is None where the answer is complete. Whoever stops reading ends it with ``GeneratorExit``."""
        call, trace, target = self._call, self._trace, self._call.target
        if target is None:
            return
        attributes: Attributes = {
            **request_attributes(call.request, target.model),
            **self._telemetry.server_of(call.policy, target.backend),
            **self._response,
        }
        if call.purpose != "answer":
            attributes["tollgate.purpose"] = call.purpose
        if call.candidate is not None and call.candidate.why != "primary":
            attributes["tollgate.why"] = call.candidate.why
        if self._first is not None and call.request.stream:
            attributes["gen_ai.response.time_to_first_chunk"] = round(self._first - self._began, 6)
        if self._finished:
            attributes["gen_ai.response.finish_reasons"] = tuple(
                reason for _, reason in sorted(self._finished.items())
            )
        if self._usage is not None:
            attributes |= usage_attributes(self._usage)
        reason = None
        if error is not None:
            attributes["error.type"] = reason_of(error)
            # A caller that leaves, or a guard that cuts, is no failure of the server's.
            reason = None if isinstance(error, GeneratorExit | asyncio.CancelledError) else reason_of(error)
        span = Span(
            f"{operation(call.request)} {target.model}",
            "client",
            trace.trace_id,
            self._id,
            trace.span_id,
            trace.unix_ns(self._began),
            trace.unix_ns(time.perf_counter()),
            attributes,
            error=reason,
        )
        trace.add_attempt(span)

    def _identify(self, chunk: Chunk) -> None:
        for field, name in (("id", "gen_ai.response.id"), ("model", "gen_ai.response.model")):
            if isinstance(value := chunk.envelope.get(field), str):
                self._response[name] = value[:_LONGEST]
