"""How the bundled engine is started as a child process. The gateway never imports it."""

from __future__ import annotations

import errno
import socket
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from gateway.policy.engine_options import start_error
from gateway.policy.loader import DRAINED, Loaded
from gateway.policy.schema import EngineBackend, Golden, Telemetry


@dataclass(frozen=True, slots=True)
class Launch:
    """A command to run for a backend. Two that are equal need no restart."""

    argv: tuple[str, ...]
    backend: str = ""
    address: tuple[str, int] | None = None
    """Host and port where it is going to listen."""
    env: tuple[str, ...] = ()
    """Variables of the gateway's environment that it gets beside the common ones."""
    variables: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Further variables, which a change of the policy does not restart it for."""
    golden: Golden | None = field(default=None, compare=False)
    """What it is asked before it takes another's place."""
    stop_first: bool = field(default=False, compare=False)
    """It ends before its successor starts, as there is no memory for both."""

    def may_replace(self, before: Launch) -> bool:
        """Whether it may start while ``before`` serves, and take over its port."""
        return self.address is not None and self.address == before.address and not self.stop_first

    def at_standby(self, port: int) -> tuple[str, ...]:
        """The command by which it waits on ``port`` until it is told to take over its own."""
        return (*self.argv, "--standby-port", str(port))

    def obstacle(self) -> str | None:
        """Why it cannot be started now: what it is to listen on is another program's."""
        if self.address is None or not _in_use(*self.address):
            return None
        host, port = self.address
        other = f"http://{host}:{port + 1 if port < 65535 else 8100}"
        return (
            f"port {port} on {host}, for the engine of backend '{self.backend}', is in use by another program. Stop "
            f"that one, or give the engine another port: ENGINE_URL={other} (base_url, where your policy does not name "
            "ENGINE_URL). An engine that runs there already is used as it is with ENGINE_LAUNCH=false"
        )


def launches(loaded: Loaded) -> Mapping[str, Launch]:
    """What is to be running for a policy, by backend name."""
    return {
        name: launch(name, backend, loaded.policy.telemetry)
        for name, backend in loaded.policy.backends.items()
        if isinstance(backend, EngineBackend)
        and backend.launch
        and loaded.disabled.get(name, DRAINED) == DRAINED  # a drained engine runs on, and may be asked again
    }


def unsound(loaded: Loaded) -> str | None:
    """Why an engine of the policy would end as soon as it is started, again and again."""
    for name in launches(loaded):
        backend = loaded.policy.backends[name]
        if isinstance(backend, EngineBackend) and (why := start_error(backend)):
            return f"backend '{name}': {why}"
    return None


def wants_port(loaded: Loaded, ports: Collection[int]) -> str | None:
    """Why the gateway cannot have these ports: an engine of the policy is to have one. Before any is in use."""
    for launch in launches(loaded).values():
        if launch.address is not None and (port := launch.address[1]) in ports:
            return (
                f"port {port} is to be the gateway's, and that of the engine of backend '{launch.backend}': take "
                "another by --port (--metrics-port), or give the engine another by ENGINE_URL (base_url, where your "
                "policy does not name ENGINE_URL)"
            )
    return None


def obstructed(loaded: Loaded, *, patience: float) -> str | None:
    """Why an engine of the policy cannot be started, after ``patience`` seconds for its port to be given up."""
    until = time.monotonic() + patience
    for launch in launches(loaded).values():
        while why := launch.obstacle():
            if time.monotonic() >= until:
                return why
            time.sleep(0.1)
    return None


def launch(name: str, backend: EngineBackend, telemetry: Telemetry | None = None) -> Launch:
    url = urlsplit(backend.base_url)
    address = url.hostname or "127.0.0.1", url.port or 80
    argv = (
        sys.executable,
        *("-m", "engine", "serve"),
        *("--model", backend.model),
        # It has one model, under its file's name; targets may call it what they like.
        "--any-model-name",
        *("--host", address[0]),
        *("--port", str(address[1])),
        "--share-port",
        *backend.args,
    )
    variables = tracing(telemetry) if telemetry is not None else {}
    return Launch(argv, name, address, backend.env, variables, backend.golden, backend.stop_first)


def tracing(telemetry: Telemetry) -> dict[str, str]:
    """``telemetry`` as OpenTelemetry's variables, by which the engine sends its spans of the gateway's traces
    (https://opentelemetry.io/docs/specs/otel/protocol/exporter/). Keys in them are in no process list.
    """
    if not (telemetry.endpoint and telemetry.traces):
        return {}
    over_http = telemetry.protocol == "http"
    named = {
        "ENDPOINT": telemetry.endpoint + ("/v1/traces" if over_http else ""),
        "PROTOCOL": "http/protobuf" if over_http else "grpc",
        "HEADERS": ",".join(
            f"{name}={quote(value.get_secret_value())}" for name, value in telemetry.headers.items()
        ),
        "TIMEOUT": f"{telemetry.timeout:g}",
        "COMPRESSION": telemetry.compression,
    }
    return {
        **{f"OTEL_EXPORTER_OTLP_TRACES_{name}": value for name, value in named.items() if value},
        "OTEL_SERVICE_NAME": f"{telemetry.service}-engine",
        "OTEL_RESOURCE_ATTRIBUTES": ",".join(
            f"{name}={quote(value)}" for name, value in telemetry.resource.items()
        ),
        # What the gateway does not trace is not traced, and its probes are no traces of their own.
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    }


def _in_use(host: str, port: int) -> bool:
    """Whether someone listens there. Whatever else is wrong with it, the engine says better itself."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
