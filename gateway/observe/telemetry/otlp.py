"""OpenTelemetry's SDK and exporters. Nothing else in the gateway imports them, and this only where a policy asks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from opentelemetry.sdk.metrics import export as metrics
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from gateway.observe.telemetry.conventions import renamed
from gateway.observe.telemetry.measured import Counter, Histogram, Series
from gateway.observe.telemetry.metric_names import Metrics
from gateway.policy import schema
from gateway.spans import Attributes, Kind, Span
from gateway.version import version

_KINDS: Mapping[Kind, SpanKind] = {
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "internal": SpanKind.INTERNAL,
}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)


class _Resource(Resource):
    """Hashed once: the encoder asks for each span, and the SDK's own hash writes all attributes as JSON, 20 µs."""

    _hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash


class OtlpExporter:
    """Certificates and proxies are the environment's, as the SDK reads it (``OTEL_EXPORTER_OTLP_CERTIFICATE`` …)."""

    def __init__(self, config: schema.Telemetry) -> None:
        release = version()
        headers = {name: value.get_secret_value() for name, value in config.headers.items()}
        self._conventions = config.conventions
        resource = Resource.create(
            {
                "service.name": config.service,
                "service.version": release,
                "service.instance.id": str(uuid.uuid4()),  # each worker is one
                **config.resource,
            }
        )
        self._resource = _Resource(resource.attributes, resource.schema_url)
        self._scope = InstrumentationScope("tollgate", release)
        self._spans: SpanExporter
        self._metrics: MetricExporter
        if config.protocol == "grpc":
            self._spans, self._metrics = _over_grpc(config, headers)
        else:
            self._spans, self._metrics = _over_http(config, headers)

    def export_spans(self, spans: list[Span]) -> bool:
        return self._spans.export([self._readable(span) for span in spans]) is SpanExportResult.SUCCESS

    def export_metrics(self, measured: Metrics, since: int) -> bool:
        found = [self._metric(one, since) for one in measured]
        scope = metrics.ScopeMetrics(self._scope, found, "")
        data = metrics.MetricsData([metrics.ResourceMetrics(self._resource, [scope], "")])
        return self._metrics.export(data) is MetricExportResult.SUCCESS

    def close(self) -> None:
        self._spans.shutdown()
        self._metrics.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        """Made at once: a tracer, which builds one step by step, takes three times as long."""
        trace_id = int(span.trace_id, 16)
        parent = None
        if span.parent_id is not None:
            parent = SpanContext(trace_id, int(span.parent_id, 16), span.parent_is_remote, _SAMPLED)
        state = TraceState.from_header([span.trace_state]) if span.trace_state else None
        return ReadableSpan(
            span.name,
            SpanContext(trace_id, int(span.span_id, 16), False, _SAMPLED, state),
            parent,
            self._resource,
            renamed(span.attributes, self._conventions),
            kind=_KINDS[span.kind],
            instrumentation_scope=self._scope,
            status=_UNSET if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start,
            end_time=max(span.start, span.end),
        )

    def _metric(self, measured: Histogram | Counter, since: int) -> metrics.Metric:
        now = time.time_ns()
        data: metrics.Histogram | metrics.Sum
        if isinstance(measured, Histogram):
            points = [
                _point(measured, renamed(dict(labels), self._conventions), series, since, now)
                for labels, series in measured.series.items()
            ]
            data = metrics.Histogram(points, metrics.AggregationTemporality.CUMULATIVE)
        else:
            counts = [
                metrics.NumberDataPoint(renamed(dict(labels), self._conventions), since, now, value)
                for labels, value in measured.values.items()
            ]
            data = metrics.Sum(counts, metrics.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return metrics.Metric(measured.name, measured.about, measured.unit, data)


def _point(
    histogram: Histogram, attributes: Attributes, series: Series, since: int, now: int
) -> metrics.HistogramDataPoint:
    return metrics.HistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=since,
        time_unix_nano=now,
        count=series.count,
        sum=series.sum,
        bucket_counts=series.buckets,
        explicit_bounds=histogram.bounds,
        min=series.low,
        max=series.high,
    )


def _over_http(config: schema.Telemetry, headers: dict[str, str]) -> tuple[SpanExporter, MetricExporter]:
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    more: dict[str, Any] = {
        "headers": headers,
        "timeout": config.timeout,
        "compression": Compression.Gzip if config.compression == "gzip" else Compression.NoCompression,
    }
    return (
        OTLPSpanExporter(endpoint=f"{config.endpoint}/v1/traces", **more),
        OTLPMetricExporter(endpoint=f"{config.endpoint}/v1/metrics", **more),
    )


def _over_grpc(config: schema.Telemetry, headers: dict[str, str]) -> tuple[SpanExporter, MetricExporter]:
    from grpc import Compression
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    pairs: Sequence[tuple[str, str]] = tuple(headers.items())
    more: dict[str, Any] = {
        "endpoint": config.endpoint,
        "insecure": config.endpoint.startswith("http://"),
        "headers": pairs or None,
        "timeout": config.timeout,
        "compression": Compression.Gzip if config.compression == "gzip" else Compression.NoCompression,
    }
    return OTLPSpanExporter(**more), cast("MetricExporter", OTLPMetricExporter(**more))
