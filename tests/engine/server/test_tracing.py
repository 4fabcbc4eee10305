"""The engine's traces as a receiver of OTLP has them: decoded from protobuf, over real sockets."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from engine.extras import install_command
from engine.options import traces_by_environment
from engine.server.otlp import OtlpTracer
from engine.server.tracing import Phase, TracedRequest
from engine.server.vllm_metrics import RequestTimeline
from tests.engine.live import EngineServer, eventually
from tests.otlp_receiver import ReceivedSpan, Receiver, grpc_receiver, http_receiver

PARENT = "00f067aa0ba902b7"


def trace(number: int, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{number:032x}-{PARENT}-{flags}", "tracestate": "vendor=opaque"}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with http_receiver() as running:
        yield running


@pytest.fixture(scope="module")
def server(
    receiver: Receiver, long_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
        log = tmp_path_factory.mktemp("tracing") / "log"
        options = (
            "--served-model-name",
            "served",
            "--kv-cache-blocks",
            "2000",
            "--max-num-seqs",
            "4",
        )
        with EngineServer(long_model, *options, log=log) as server:
            yield server


def spans_of(receiver: Receiver, number: int) -> dict[str, ReceivedSpan]:
    """A trace's spans by name, once its request's has come, which is sent last."""
    found: list[ReceivedSpan] = []

    def there() -> bool:
        found[:] = receiver.of(f"{number:032x}")
        return any(span.kind == "server" for span in found)

    eventually(there)
    assert len({span.name for span in found}) == len(found)
    return {span.name: span for span in found}


def test_a_request_goes_on_its_callers_trace(server: EngineServer, receiver: Receiver) -> None:
    body = {"model": "served", "prompt": "a b c", "max_tokens": 9, "temperature": 0.5, "ignore_eos": True}
    answer = server.http.post("/v1/completions", json=body, headers=trace(1)).json()
    spans = spans_of(receiver, 1)
    assert set(spans) == {"text_completion served", "queue", "prefill", "decode"}
    whole = spans["text_completion served"]
    assert (whole.kind, whole.parent_id, whole.trace_state) == ("server", PARENT, "vendor=opaque")
    assert not whole.failed
    assert whole.resource["service.name"] == "tollgate-engine"
    told = whole.attributes
    assert told["gen_ai.operation.name"] == "text_completion"
    assert told["gen_ai.provider.name"] == "tollgate"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "served"
    assert told["gen_ai.request.max_tokens"] == 9
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.response.id"] == answer["id"]
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert told["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == 9
    assert told["http.response.status_code"] == 200
    assert "a b c" not in str(told)
    phases = [spans[name] for name in ("queue", "prefill", "decode")]
    assert all(phase.parent_id == whole.span_id for phase in phases)
    times = [whole.start, *(time for phase in phases for time in (phase.start, phase.end)), whole.end]
    assert times == sorted(times)
    assert phases[0].end == phases[1].start
    assert phases[1].end == phases[2].start
    for phase, name in zip(
        phases, ("time_in_queue", "time_in_model_prefill", "time_in_model_decode"), strict=True
    ):
        assert told[f"gen_ai.latency.{name}"] == pytest.approx((phase.end - phase.start) / 1e9, abs=2e-6)
    assert told["gen_ai.latency.e2e"] == pytest.approx((whole.end - whole.start) / 1e9, abs=2e-6)
    assert {headers["x-key"] for headers in receiver.headers} == {"secret"}


def send(server: EngineServer, headers: dict[str, str], **body: object) -> socket.socket:
    """A request of which nothing has been read yet."""
    data = json.dumps({"model": "served", "prompt": "a", "ignore_eos": True, **body})
    lines = [f"{name}: {value}" for name, value in headers.items()]
    head = ["POST /v1/completions HTTP/1.1", "host: engine", f"content-length: {len(data)}", *lines, "", data]
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=300)
    connection.sendall("\r\n".join(head).encode())
    return connection


def test_a_request_that_waits_has_a_longer_queue(server: EngineServer, receiver: Receiver) -> None:
    with send(server, trace(2), n=4, max_tokens=25_000):
        eventually(lambda: server.state()["running"] == 4)
        waiting = send(server, trace(3), max_tokens=25_000)
        eventually(lambda: server.state()["waiting"] == 1)
    with waiting:
        eventually(lambda: server.state()["running"] == 1)
    left, waited = spans_of(receiver, 2), spans_of(receiver, 3)
    assert left["text_completion served"].attributes["error.type"] == "hung_up"
    assert not left["text_completion served"].failed
    assert left["text_completion served"].attributes["gen_ai.response.finish_reasons"] == ["error"] * 4
    assert left["text_completion served"].attributes["gen_ai.request.choice.count"] == 4
    # It waited for the other to leave: their phases cannot overlap.
    assert waited["queue"].end >= left["decode"].end
    assert waited["queue"].start < left["decode"].end


def test_what_is_refused_is_told_and_what_is_not_sampled_is_not(
    server: EngineServer, receiver: Receiver
) -> None:
    body = {"model": "served", "prompt": "a", "max_tokens": 1}
    server.http.post("/v1/completions", json=body, headers=trace(4, flags="00"))
    server.http.post("/v1/completions", json={"model": "served"}, headers=trace(5))
    server.http.post("/v1/completions", json=body | {"model": "other"}, headers=trace(6))
    spans = spans_of(receiver, 5)
    assert list(spans) == ["text_completion"]
    assert spans["text_completion"].attributes["error.type"] == "invalid_value"
    assert spans["text_completion"].attributes["http.response.status_code"] == 400
    assert not spans["text_completion"].failed
    assert spans_of(receiver, 6)["text_completion"].attributes["error.type"] == "model_not_found"
    assert receiver.of(f"{4:032x}") == []


RECEIVERS = pytest.mark.parametrize(
    ("listening", "protocol", "path"),
    [(http_receiver, "http", "/v1/traces"), (grpc_receiver, "grpc", "")],
    ids=["http", "grpc"],
)


@RECEIVERS
def test_all_is_exported_by_the_end(
    listening: Callable[[], AbstractContextManager[Receiver]], protocol: str, path: str
) -> None:
    with listening() as receiver:
        tracer = OtlpTracer(receiver.url + path, protocol)
        headers = {b"traceparent": trace(7)["traceparent"].encode()}
        timeline = RequestTimeline(100.0, 100.5, 0.25, 101.0, 103.0, 5)
        tracer.record(
            TracedRequest("/v1/chat/completions", headers, 100.0, None, [timeline], 500, "internal_error")
        )
        tracer.record(TracedRequest("/v1/chat/completions", {b"traceparent": b"nonsense"}))
        tracer.close()
        whole, queue, prefill, decode = receiver.of(f"{7:032x}")
        assert len(receiver.spans) == 6 - 1  # the second begins a trace of its own
    assert whole.failed
    assert whole.attributes["gen_ai.latency.time_to_first_token"] == 1.0
    assert [span.end - span.start for span in (queue, prefill, decode)] == [
        pytest.approx(seconds * 1e9, abs=2000) for seconds in (0.25, 0.25, 2.0)
    ]


def test_the_phases_of_several_choices() -> None:
    request = TracedRequest("/v1/completions", {}, 0.0)
    assert request.phases == []
    request.timelines = [
        RequestTimeline(0.0, 1.0),  # without a token yet
        RequestTimeline(0.0, 1.0, 2.0, first_token=5.0, last_token=9.0, tokens=3),
        RequestTimeline(0.0, 1.0, 1.0, first_token=6.0, last_token=7.0, tokens=2),
    ]
    assert request.phases == [
        Phase("queue", 1.0, 2.0),
        Phase("prefill", 2.0, 5.0),
        Phase("decode", 5.0, 9.0),
    ]


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({}, {}),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://d/x"}, "http://d/x"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://c:4317"),
    ],
    ids=["nothing", "all", "traces", "grpc"],
)  # fmt: skip
def test_opentelemetrys_own_variables(env: dict[str, str], found: object) -> None:
    read = traces_by_environment(env)
    assert read.get("otlp_traces_endpoint", {}) == found
    assert ("otlp_traces_protocol" in read) == ("OTEL_EXPORTER_OTLP_PROTOCOL" in env)


def test_without_the_packages_it_serves_and_says_so(tiny_model: Path, tmp_path: Path) -> None:
    """The engine in an environment where OpenTelemetry cannot be imported."""
    program = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from engine.__main__ import main\n"
        "sys.argv[0] = 'engine'\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    script = tmp_path / "engine_without.py"
    script.write_text(program)
    options = ("serve", "--model", str(tiny_model), "--port", "0", "--kv-cache-blocks", "100")
    command = [
        sys.executable,
        str(script),
        *options,
        "--otlp-traces-endpoint",
        "http://127.0.0.1:9/v1/traces",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("engine ready on ")
        process.terminate()
        _, log = process.communicate()
    assert install_command("otel") in log
    assert process.returncode == 0
