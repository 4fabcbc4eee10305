"""Which requests are traced, and the way of spans and metrics to their receiver, off the requests' own path."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from gateway.observe.batch_writer import SECONDS_TO_CLOSE, BatchWriter
from gateway.observe.telemetry.conventions import operation, provider, server
from gateway.observe.telemetry.measured import AttemptMetrics, ClientMetrics, Labels
from gateway.observe.telemetry.metric_names import Metrics, metrics
from gateway.observe.telemetry.request_spans import refused_span
from gateway.observe.telemetry.score import Score, Source
from gateway.observe.telemetry.score_sender import ScoreSender
from gateway.observe.tracing import TRACEPARENT
from gateway.policy import schema
from gateway.spans import Attributes, Span, Trace, ids_of
from gateway.types import Call, UpstreamUsage

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds in which spans come together: an export has its price, whatever its size."""
LONGEST_STATE = 512
"""Characters of a ``tracestate`` that are handed on, as the recommendation asks for at least."""
_HALF = 2**64


class Exporter(Protocol):
    """Sends batches to the receiver, blocking. Both return False where they are lost."""

    def export_spans(self, spans: list[Span]) -> bool: ...

    def export_metrics(self, metrics: Metrics, since: int) -> bool:
        """Cumulative since ``since`` (Unix time, in nanoseconds)."""
        ...

    def close(self) -> None: ...


class Telemetry:
    """One policy's. Traces and metrics that the receiver does not take are lost, not requests."""

    def __init__(
        self,
        config: schema.Telemetry,
        open_exporter: Callable[[schema.Telemetry], Exporter],
        *,
        random: random.Random | None = None,
    ) -> None:
        """``open_exporter`` is called in a thread that may block."""
        self.config = config
        self._exporter = open_exporter(config)
        self._random = random
        self._writer = BatchWriter[list[Span]]("telemetry", self._write, pause=PAUSE)
        self._metrics = ClientMetrics() if config.metrics else None
        self._servers: dict[str, _Server] = {}
        self._since = time.time_ns()
        self._ended = threading.Event()
        address = config.score_address if config.traces else None
        self._scores = ScoreSender(config, address) if address is not None else None
        if config.metrics:
            self._reporter = threading.Thread(target=self._report, name="telemetry-metrics", daemon=True)
            self._reporter.start()

    def trace(self, request_id: str, traceparent: str, state: str = "") -> Trace | None:
        """The trace of a request that is sampled. ``traceparent`` is its caller's; not that it is sound."""
        trace_id, span_id = ids_of(request_id)
        parent = traceparent if TRACEPARENT.fullmatch(traceparent) else ""
        if parent:
            trace_id = parent[3:35]
        if not (self.config.traces and self._is_sampled(trace_id, parent)):
            return None
        state = state if parent and len(state) <= LONGEST_STATE else ""
        writer = self._writer
        return Trace(trace_id, parent[36:52] or None, state, self.config.content, writer.add, span_id=span_id)

    @property
    def takes_scores(self) -> bool:
        return self._scores is not None

    def scored(
        self,
        request_id: str,
        name: str,
        value: float | None = None,
        label: str | None = None,
        comment: str | None = None,
        source: Source = "human",
        *,
        trace_id: str | None = None,
    ) -> None:
        """Somebody, or something, thinks so of a request's answer: it is sent to where the request's trace is.

        It waits for nothing. ``trace_id`` is that of a request that was traced by the will of
        its caller; what else was not traced has no score. A ``comment`` is told where contents are (``content``): the
        caller has seen to it that it may leave.
        """
        if self._scores is None:
            return
        made_up, span_id = ids_of(request_id)
        if trace_id is None:
            trace_id = made_up
            if not self._is_sampled(trace_id, ""):
                return
        told = comment if self.config.content else None
        if value is None and label is None and told is None:
            return
        self._scores.add(Score(request_id, name, value, label, told, source, trace_id, span_id, time.time()))

    def refused(
        self,
        request_id: str,
        route: str,
        headers: Iterable[tuple[bytes, bytes]],
        started: float,
        status: int,
        error: str,
    ) -> None:
        """A request was refused before it became a call. ``headers`` are as ASGI has them."""
        sent = next((value.decode("latin-1") for name, value in headers if name == b"traceparent"), "")
        if (trace := self.trace(request_id, sent)) is not None:
            trace.close([refused_span(trace, request_id, route, started, time.perf_counter(), status, error)])

    def attempted(
        self, call: Call, facts: Mapping[str, Any], error: str | None, upstream: UpstreamUsage | None
    ) -> None:
        """An attempt that was sent has ended. ``facts`` are the receipt's, ``error`` is one of a bounded set."""
        target = call.target
        if self._metrics is None or target is None or "sent" not in facts:
            return
        server, key = self._server(call.policy, target.backend), (operation(call.request), target.model)
        series = server.series.get(key)
        if series is None:
            series = server.series[key] = AttemptMetrics(self._metrics, server.labels(*key))
        sent, first = facts["sent"], facts.get("first_chunk")
        series.add(
            facts["began"] + facts["seconds"] - sent,
            error,
            first - sent if first is not None and call.request.stream else None,
            None if upstream is None else upstream.usage,
        )

    def server_of(self, policy: schema.Policy, backend: str) -> Attributes:
        """Who a backend is, and where."""
        return self._server(policy, backend).attributes

    async def aclose(self) -> None:
        """Export what waits, within a few seconds."""
        await asyncio.to_thread(self._close)

    def _server(self, policy: schema.Policy, backend: str) -> _Server:
        known = self._servers.get(backend)
        if known is None or known.policy is not policy:
            known = self._servers[backend] = _Server(policy, backend)
        return known

    def _is_sampled(self, trace_id: str, parent: str) -> bool:
        if parent and self.config.follow_caller:
            return bool(int(parent[53:55], 16) & 1)
        # As OpenTelemetry's own ratio samplers decide: services that share a ratio trace the same requests.
        return int(trace_id[16:], 16) < self.config.sample * _HALF

    def _write(self, batches: list[list[Span]]) -> None:
        """Runs in the writer's thread."""
        spans = [span for batch in batches for span in batch]
        if not self._exporter.export_spans(spans):
            self._writer.lost += len(batches)
            self._warn("traces")

    def _report(self) -> None:
        while not self._ended.wait(self.config.interval):
            self._export_metrics()

    def _export_metrics(self) -> None:
        if self._metrics is None:
            return
        found = metrics(self._metrics.snapshot(), self.config.conventions)
        if found and not self._exporter.export_metrics(found, self._since):
            self._warn("metrics")

    def _warn(self, what: str) -> None:
        message = (
            "'%s' does not take %s (%d traces are lost so far): is telemetry.endpoint right, do telemetry.headers hold "
            "its key, and does it take both traces and metrics?"
        )
        self._writer.warn(log, message, self.config.endpoint, what, self._writer.lost)

    def _close(self) -> None:
        self._ended.set()
        by = time.monotonic() + SECONDS_TO_CLOSE
        # Beside the spans: a receiver that accepts and says nothing holds each export for the whole timeout.
        last = threading.Thread(target=self._export_metrics, name="telemetry-last-metrics", daemon=True)
        last.start()
        self._writer.close()
        if self._scores is not None:
            self._scores.close()
        last.join(max(0.0, by - time.monotonic()))
        self._exporter.close()


class _Server:
    """What attempts at one backend have in common; remembered, as it takes long to find out."""

    def __init__(self, policy: schema.Policy, name: str) -> None:
        self.policy = policy
        config = policy.backends[name]
        self.attributes: Attributes = {
            "gen_ai.provider.name": provider(config),
            **server(config),
            "tollgate.backend": name,
        }
        self.series: dict[tuple[str, str], AttemptMetrics] = {}

    def labels(self, operation: str, model: str) -> Labels:
        own = ((key, value) for key, value in self.attributes.items() if isinstance(value, str | int))
        return ("gen_ai.operation.name", operation), ("gen_ai.request.model", model), *own
