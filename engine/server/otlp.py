"""Traces by OTLP, with OpenTelemetry's SDK. Nothing else in the engine imports it, and this only where asked for.

Names are those of https://github.com/open-telemetry/semantic-conventions-genai, and for times in the engine vLLM's
(``gen_ai.latency.*``). Which requests are traced is their caller's decision, by the flag of its ``traceparent``;
without one ``OTEL_TRACES_SAMPLER`` decides. Keys, certificates and the resource's attributes are the environment's:
``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_EXPORTER_OTLP_CERTIFICATE``, ``OTEL_RESOURCE_ATTRIBUTES`` and their like.
"""

from __future__ import annotations

import time
import uuid

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.status import Status, StatusCode

from engine.server.prepare import PreparedRequest
from engine.server.tracing import TracedRequest
from engine.version import version

SERVICE = "tollgate-engine"
_LATENCY = {"queue": "time_in_queue", "prefill": "time_in_model_prefill", "decode": "time_in_model_decode"}


class OtlpTracer:
    """A span of kind SERVER for each request, with one for each of its phases below."""

    def __init__(self, endpoint: str, protocol: str) -> None:
        """``endpoint`` and ``protocol``: as in ``ServerConfig``."""
        named = Resource.create({"service.instance.id": str(uuid.uuid4()), "service.version": version()})
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES prevail; without them the SDK says unknown_service.
        if str(named.attributes.get("service.name", "")).startswith("unknown_service"):
            named = named.merge(Resource({"service.name": SERVICE}))
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(endpoint, protocol)))
        self._tracer = self._provider.get_tracer("tollgate.engine", version())
        self._propagator = TraceContextTextMapPropagator()

    def record(self, request: TracedRequest) -> None:
        now = time.monotonic()
        zero = time.time_ns() - int(now * 1e9)

        def at(moment: float) -> int:
            return zero + int(moment * 1e9)

        sent = {
            name: request.headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in request.headers
        }
        operation = "chat" if request.path == "/v1/chat/completions" else "text_completion"
        model = request.prepared.answer.model if request.prepared is not None else ""
        span = self._tracer.start_span(
            f"{operation} {model}".strip(),
            self._propagator.extract(sent),
            SpanKind.SERVER,
            start_time=at(request.began),
        )
        if span.is_recording():
            span.set_attribute("gen_ai.operation.name", operation)
            _describe(span, request, now)
            inside = set_span_in_context(span)
            for phase in request.phases:
                child = self._tracer.start_span(phase.name, inside, start_time=at(phase.start))
                child.end(at(phase.end))
        span.end(at(now))

    def close(self) -> None:
        self._provider.shutdown()


def _describe(span: Span, request: TracedRequest, now: float) -> None:
    span.set_attributes(
        {"gen_ai.provider.name": "tollgate", "http.request.method": "POST", "http.route": request.path}
    )
    if request.status:
        span.set_attribute("http.response.status_code", request.status)
    if request.error is not None:
        span.set_attribute("error.type", request.error)
        # What the caller did wrong, and that it left, is no failure of the server's (semantic conventions, HTTP).
        if request.error != "hung_up" and not 400 <= request.status < 500:
            span.set_status(Status(StatusCode.ERROR, request.error))
    if request.prepared is not None:
        _describe_answer(span, request.prepared)
    if reasons := [one.finish or "error" for one in request.timelines]:
        span.set_attribute("gen_ai.response.finish_reasons", reasons)
    for phase in request.phases:
        span.set_attribute(f"gen_ai.latency.{_LATENCY[phase.name]}", round(phase.end - phase.start, 6))
        if phase.name == "prefill":
            span.set_attribute("gen_ai.latency.time_to_first_token", round(phase.end - request.began, 6))
    span.set_attribute("gen_ai.latency.e2e", round(now - request.began, 6))


def _describe_answer(span: Span, prepared: PreparedRequest) -> None:
    params, usage = prepared.sequences[0].params, prepared.usage
    span.set_attributes(
        {
            "gen_ai.request.model": prepared.answer.model,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.response.id": prepared.answer.id,
            "gen_ai.response.model": prepared.answer.model,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
        }
    )
    if usage.cached_tokens:
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens)
    if params.top_k:
        span.set_attribute("gen_ai.request.top_k", params.top_k)
    if len(prepared.sequences) != 1:
        span.set_attribute("gen_ai.request.choice.count", len(prepared.sequences))
    if prepared.stream:
        span.set_attribute("gen_ai.request.stream", True)


def _exporter(endpoint: str, protocol: str) -> SpanExporter:
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc(endpoint=endpoint, insecure=endpoint.startswith("http://"))
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    return Http(endpoint=endpoint)
