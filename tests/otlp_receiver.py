"""A receiver of OTLP, over HTTP or gRPC, on a real socket: it decodes what comes and keeps it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

KINDS = {1: "internal", 2: "server", 3: "client"}


@dataclass
class ReceivedSpan:
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    failed: bool
    trace_state: str


@dataclass
class Receiver:
    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    points: dict[str, list[tuple[dict[str, Any], Any]]] = field(default_factory=dict)
    """Metrics' data points, the newest export's, by name: their attributes and themselves."""
    headers: list[Mapping[str, str]] = field(default_factory=list)
    """Of each export, their names in lower case."""
    status: int = 200
    """What HTTP exports are answered."""
    patience: float = 0.0
    """Seconds for which the last export by gRPC would have waited."""

    def of(self, trace_id: str, kind: str = "") -> list[ReceivedSpan]:
        """A trace's spans, of a kind, in the order of their beginning."""
        found = [span for span in self.spans if span.trace_id == trace_id and kind in ("", span.kind)]
        return sorted(found, key=lambda span: span.start)

    def take_traces(self, request: Any) -> None:
        for group in request.resource_spans:
            resource = _attributes(group.resource.attributes)
            for scope in group.scope_spans:
                self.spans += [_span(span, resource) for span in scope.spans]

    def take_metrics(self, request: Any) -> None:
        for group in request.resource_metrics:
            for scope in group.scope_metrics:
                for metric in scope.metrics:
                    found = metric.histogram if metric.HasField("histogram") else metric.sum
                    self.points[metric.name] = [
                        (_attributes(point.attributes), point) for point in found.data_points
                    ]


@contextmanager
def http_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            if receiver.status == 200 and self.path.endswith("/v1/traces"):
                receiver.take_traces(ExportTraceServiceRequest.FromString(body))
            elif receiver.status == 200 and self.path.endswith("/v1/metrics"):
                receiver.take_metrics(ExportMetricsServiceRequest.FromString(body))
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def grpc_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    def heard(context: grpc.ServicerContext) -> None:
        receiver.headers.append(dict(context.invocation_metadata()))
        receiver.patience = context.time_remaining()

    class Traces(TraceServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
            heard(context)
            receiver.take_traces(request)
            return ExportTraceServiceResponse()

    class Metrics(MetricsServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
            heard(context)
            receiver.take_metrics(request)
            return ExportMetricsServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    add_TraceServiceServicer_to_server(Traces(), server)
    add_MetricsServiceServicer_to_server(Metrics(), server)
    receiver.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


def _span(span: Any, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        KINDS[span.kind],
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        resource,
        span.status.code == 2,
        span.trace_state,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = cast("str", value.WhichOneof("value"))
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
