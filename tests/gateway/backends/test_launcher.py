from __future__ import annotations

import sys
from pathlib import Path

from gateway.backends.launcher import launch, launches
from gateway.policy.loader import Loaded
from gateway.policy.schema import EngineBackend, Policy, Telemetry


def test_the_command_comes_from_the_policy() -> None:
    backend = EngineBackend(
        kind="engine",
        base_url="http://127.0.0.1:8123",
        launch=True,
        model="my/model",
        args=("--threads", "2"),
    )
    found = launch("bundled", backend)
    assert found.argv == (
        *(sys.executable, "-m", "engine", "serve", "--model", "my/model"),
        "--any-model-name",
        *("--host", "127.0.0.1", "--port", "8123", "--share-port", "--threads", "2"),
    )


def test_an_address_of_ipv6_and_a_url_without_port() -> None:
    argv = launch("e", EngineBackend(kind="engine", base_url="http://[::1]", launch=True)).argv
    assert argv[argv.index("--host") + 1 :][:1] == ("::1",)
    assert argv[argv.index("--port") + 1] == "80"


TRACED = Telemetry(
    endpoint="http://collector:4318",
    headers={"X-Key": "a b,c=d"},
    service="gate",
    resource={"zone": "eu 1"},
    timeout="2500ms",
)


def test_an_engine_traces_where_the_gateway_does() -> None:
    backend = EngineBackend(kind="engine", launch=True)
    found = launch("e", backend, TRACED)
    assert found.variables == {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-key=a%20b%2Cc%3Dd",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2.5",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none",
        "OTEL_SERVICE_NAME": "gate-engine",
        "OTEL_RESOURCE_ATTRIBUTES": "zone=eu%201",
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    }
    assert not any("a b" in word for word in found.argv)
    by_grpc = launch("e", backend, TRACED.model_copy(update={"protocol": "grpc"})).variables
    assert by_grpc["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "http://collector:4318"
    assert by_grpc["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "grpc"
    assert launch("e", backend, TRACED.model_copy(update={"traces": False})).variables == {}
    assert launch("e", backend, Telemetry()).variables == {}


def test_telemetry_restarts_no_engine() -> None:
    models = {"m": {"targets": [{"backend": "e", "model": "demo"}]}}
    policy = {"version": 1, "backends": {"e": {"kind": "engine", "launch": True}}, "models": models}
    traced = {**policy, "telemetry": {"endpoint": "http://collector:4318"}}
    before, after = (launches(Loaded(Policy.model_validate(one), {}, "", ())) for one in (policy, traced))
    assert before == after
    assert not before["e"].variables
    assert after["e"].variables


def test_only_enabled_engines_that_are_to_be_launched_are() -> None:
    policy = Policy.model_validate(
        {
            "version": 1,
            "backends": {
                "yes": {"kind": "engine", "launch": True},
                "no": {"kind": "engine"},
                "off": {"kind": "engine", "launch": True, "base_url": "http://127.0.0.1:1"},
                "far": {"kind": "openai", "base_url": "http://far/v1"},
            },
            "models": {"m": {"targets": [{"backend": "yes", "model": "m"}]}},
        }
    )
    loaded = Loaded(policy, {"off": "for a reason"}, "", (Path("gateway.yaml"),))
    assert list(launches(loaded)) == ["yes"]
