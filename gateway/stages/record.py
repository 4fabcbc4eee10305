"""The record of a request: its place in a trace, its times, and what it may and did use of its caller's limits.

A caller may act on an answer once it is whole. So what its next request is admitted by is settled before the answer's
end is passed on: in memory; counters in a store are told of it before they are asked anything else. All other facts are
only handed over then (``Ended``), and rendered by who writes them: a receipt, a row of the ledger and a line of the log
may follow their answer by a moment.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import GatewayError
from gateway.metering.bill import bill_of
from gateway.metering.price import NANO, cost
from gateway.observe.accounting import RequestAccounting
from gateway.observe.ended import Ended, RequestLine, level_of
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import is_refusal, outcome_of, reason_of
from gateway.observe.prometheus.buffers import BufferedCounter, BufferedHistogram
from gateway.observe.receipts import Receipts
from gateway.observe.telemetry.request_spans import export_request
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.observe.tracing import trace_context
from gateway.quota.allowance import Reservation
from gateway.quota.quotas import Quotas, tokens_of
from gateway.spans import Trace
from gateway.types import Call, Chunk, Chunks, Handler, Stage, Usage, WholeHandler

log = logging.getLogger(__name__)
requests = logging.getLogger("gateway.requests")


@dataclass(frozen=True, slots=True)
class Observers:
    """Who is told of a request."""

    quotas: Quotas | None = None
    """May refuse it."""
    accounting: RequestAccounting | None = None
    """Gets it once it has ended or was refused; with ``quotas`` only."""
    metrics: Metrics | None = None
    receipts: Receipts | None = None
    """With a line in the log."""
    telemetry: Telemetry | None = None
    """With ``receipts`` only."""


def record(observers: Observers) -> Stage:
    quotas = observers.quotas

    def stage(following: Handler) -> Handler:
        async def recorded(call: Call) -> Chunks:
            recorder = Recorder(observers, call)
            try:
                recorder.begin()
                if quotas is not None:
                    recorder.admitted(await quotas.reserve(call))
                chunks = following(call)
                call.looks_on(chunks, recorder.passed)
                try:
                    async for chunk in chunks:
                        recorder.chunk(chunk)
                        yield chunk
                finally:
                    await chunks.aclose()
            except BaseException as error:
                # Not kept in a variable, as an error and a frame that it came through would hold each other.
                recorder.end(error)
                raise
            else:
                recorder.end(None)

        return recorded

    return stage


def record_whole(observers: Observers, following: WholeHandler) -> WholeHandler:
    """``record`` of calls whose answers come whole."""
    quotas = observers.quotas

    async def recorded(call: Call) -> Sequence[Chunk]:
        recorder = Recorder(observers, call)
        try:
            recorder.begin()
            if quotas is not None:
                recorder.admitted(await quotas.reserve(call))
            chunks = await following(call)
            recorder.whole(chunks)
        except BaseException as error:
            recorder.end(error)
            raise
        recorder.end(None)
        return chunks

    return recorded


class Recorder:
    """One request's: ``begin``, ``admitted``, each ``chunk``, ``end``."""

    _trace_id = ""
    _flags = "00"
    _trace: Trace | None = None
    _in_flight: BufferedCounter | None = None
    _inter_token: BufferedHistogram | None = None
    _usage: Usage | None = None
    _first = 0.0
    _last = 0.0
    _gaps = 0
    _finish: str | None = None
    _has_refusal = False
    _admitted = False
    _reservation: Reservation | None = None
    _reserved = 0

    def __init__(self, observers: Observers, call: Call) -> None:
        self._observers = observers
        self._call = call
        self._model = call.model
        if observers.receipts is not None:
            self._trace_id, self._flags = trace_context(call.headers.get("traceparent", ""))
            if observers.telemetry is not None:
                self._sample(observers.telemetry)

    def _sample(self, telemetry: Telemetry) -> None:
        call = self._call
        headers = call.headers
        self._trace = telemetry.trace(
            call.request_id, headers.get("traceparent", ""), headers.get("tracestate", "")
        )
        if self._trace is None:
            self._flags = "00"
        else:
            self._trace_id = self._trace.trace_id
            call.receipt.note("trace", sampled=True)
            call.trace = self._trace
            # Which begins after this, and before all other stages.
            self._trace.enter("quota", call.receipt.noted)

    def begin(self) -> None:
        """Continue the caller's trace, or begin one, and send it upstream."""
        call, metrics = self._call, self._observers.metrics
        if self._trace is not None:
            parent = self._trace.traceparent(self._trace.span_id)
            call.headers = {**call.headers, "traceparent": parent}
        elif self._trace_id:
            parent = f"00-{self._trace_id}-{random.getrandbits(64):016x}-{self._flags}"
            call.headers = {**call.headers, "traceparent": parent}
        if metrics is not None:
            self._in_flight = metrics.in_flight[self._model, "waiting"]
            self._in_flight.pending += 1

    def admitted(self, reservation: Reservation | None) -> None:
        """It is within its caller's limits, and holds ``reservation`` of them."""
        self._admitted = True
        estimate = self._call.estimate
        if reservation is not None:
            self._reservation = reservation
            self._reserved = 0 if estimate is None else tokens_of(estimate)

    def chunk(self, chunk: Chunk) -> None:
        if not self._last and chunk.comment is None:
            self._first = self._last = time.perf_counter()
            if self._in_flight is not None:
                self._runs(self._in_flight)
            if chunk.delta and chunk.delta.get("refusal"):
                self._has_refusal = True
        elif chunk.delta:
            self._gaps += 1
            if chunk.delta.get("refusal"):
                self._has_refusal = True
            # Chunks that came in one read leave in one write.
            if not chunk.more and self._inter_token is not None:
                now = time.perf_counter()
                self._inter_token.observe(now - self._last)
                self._last = now
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.finish_reason is not None:
            self._finish = self._finish or chunk.finish_reason

    def passed(self, like: Chunk, texts: Sequence[str]) -> None:
        """As ``chunk``, for those that went to the call's sink."""
        self._gaps += len(texts)
        if like.delta and "refusal" in like.delta:  # the one text that it has
            self._has_refusal = True
        if self._inter_token is not None:
            now = time.perf_counter()
            self._inter_token.observe(now - self._last)
            self._last = now

    def _runs(self, waited: BufferedCounter) -> None:
        metrics, call = self._observers.metrics, self._call
        if metrics is None:
            return
        waited.pending -= 1
        self._in_flight = metrics.in_flight[self._model, "running"]
        self._in_flight.pending += 1
        if call.cached is None and call.line is None:  # whose pace means nothing
            self._inter_token = metrics.inter_token[(self._model,)]

    def whole(self, chunks: Sequence[Chunk]) -> None:
        """All chunks of the answer are there at once."""
        usage = finish = None
        for chunk in reversed(chunks):
            if usage is None:
                usage = chunk.usage
            if chunk.finish_reason is not None:
                finish = chunk.finish_reason
                if chunk.delta and chunk.delta.get("refusal"):
                    self._has_refusal = True
        self.rendered(len(chunks) - 1, usage, finish)

    def rendered(self, gaps: int, usage: Usage | None, finish_reason: str | None) -> None:
        """The whole answer, of ``gaps`` chunks after the first, is there at once."""
        self._first = time.perf_counter()
        self._gaps = gaps
        self._usage = usage
        self._finish = finish_reason

    def end(self, error: BaseException | None) -> None:
        """The request is over, ended by ``error`` if the answer is not complete. What fails here is logged, and costs
        the rest nothing."""
        ended = Ended(self._call)
        if error is not None:
            ended.status, ended.code = outcome_of(error)
            ended.error = reason_of(error)
        # Before it is entered: who writes the ledger may do so at once.
        ended.usage = self._usage
        ended.chunks_after_first = self._gaps
        ended.finish_reason = self._finish
        ended.has_refusal = self._has_refusal
        if self._first:
            ended.first_token = round(self._first - self._call.started, 6)
        for step in (self._settle, self._count, self._close):
            try:
                step(ended, error)
            except Exception:
                log.exception("%s could not be recorded", self._call.request_id)

    def _settle(self, ended: Ended, error: BaseException | None) -> None:
        """Settle with what it did use, exactly once, and enter that."""
        call, quotas, reservation = self._call, self._observers.quotas, self._reservation
        line = call.line
        if quotas is None:
            return
        if not self._admitted:
            if isinstance(error, GatewayError) and (line is None or line.is_final(error)):
                self._enter(ended)
            return
        if line is not None and not line.is_final(error):
            self._again(ended, quotas)
            return
        ended.bill = bill = bill_of(
            call.policy, call.upstream_usage, 1.0 if line is None else line.price_factor
        )
        ended.is_settled = True
        if reservation is not None:
            quotas.settle(reservation, tokens=bill.tokens, nanodollars=bill.nanodollars)
            ended.reserved_tokens = self._reserved
            if reservation.limits.dollars is not None:
                ended.reserved_nanodollars = reservation.held.nanodollars
        if error is None and not bill.estimated and (answer := bill.answer) is not None:
            quotas.estimator.learn(call, answer.upstream.usage)
        if line is not None:
            ended.price_factor = line.price_factor
        self._enter(ended)

    def _again(self, ended: Ended, quotas: Quotas) -> None:
        """The line will run again, and is charged for then; what it used this time is the house's."""
        ended.runs_again = True
        if self._reservation is not None:
            quotas.settle(self._reservation, tokens=0, nanodollars=0)
        bill = bill_of(self._call.policy, self._call.upstream_usage)
        if bill.charges and self._observers.accounting is not None:
            self._observers.accounting.record_for_house(self._call, bill)

    def _enter(self, ended: Ended) -> None:
        """``_count`` adds to it what is not the ledger's."""
        accounting = self._observers.accounting
        if accounting is None:
            return
        try:
            accounting.record(self._call, ended)
        except Exception:
            log.exception("%s could not be entered in the ledger", self._call.request_id)

    def _count(self, ended: Ended, error: BaseException | None) -> None:
        """In metrics: outcome, times, what a cache saved."""
        metrics = self._observers.metrics
        if metrics is None:
            return
        call, model, status = self._call, self._model, str(ended.status)
        ended.is_metered = True
        tenant = metrics.tenant(call.principal.tenant) if metrics.tenants.enabled else ""
        if error is not None and is_refusal(error, ended.attempts):
            metrics.refused[tenant, reason_of(error)].pending += 1
        if self._in_flight is not None:
            self._in_flight.pending -= 1
        if self._first:
            seconds = self._first - call.started
            if call.cached is None and call.line is None:
                metrics.first_token[(model,)].observe(seconds)
                if tenant:
                    metrics.tenant_first_token[(tenant,)].observe(seconds)
        candidate = call.candidate
        # A cached answer is no backend's work.
        backend = "" if candidate is None or call.cached is not None else candidate.target.backend
        metrics.requests[model, backend, status].pending += 1
        if call.line is None:  # which may have waited for hours
            metrics.seconds[(model,)].observe(ended.seconds)
        if tenant:
            metrics.tenant_requests[tenant, status].pending += 1
        if self._usage is not None and call.cached is not None:
            self._save(metrics, call.cached, self._usage)

    def _save(self, metrics: Metrics, cache: str, usage: Usage) -> None:
        """What the answer took when it was made, which it did not take again."""
        call = self._call
        metrics.cache_saved_tokens[cache, self._model].inc(usage.prompt + usage.completion)
        nanodollars = cost(call.policy, call.target, usage) if call.target is not None else 0
        if nanodollars:
            metrics.cache_saved_dollars[cache, self._model].inc(nanodollars / NANO)

    def _close(self, ended: Ended, error: BaseException | None) -> None:
        """The receipt, one line in the log, and the spans of a request that is sampled."""
        call, receipts = self._call, self._observers.receipts
        if receipts is not None:
            ended.trace_id = self._trace_id
        call.receipt.close(ended)
        if receipts is None:
            return
        if isinstance(error, GatewayError):
            error.logged = True
        receipts.keep(call.principal.tenant, call.receipt)
        level = level_of(ended.status)
        if requests.isEnabledFor(level):
            requests.callHandlers(RequestLine(requests.name, level, ended))  # it has no filter of its own
        if self._trace is not None:
            export_request(self._trace, call, ended.status, ended.error)
