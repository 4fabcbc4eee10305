"""Parsed flags to a ``ServerConfig``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from engine.config import EngineConfig, ServerConfig
from engine.drafts.kind import draft_kind
from engine.errors import StartupError
from engine.nodes.address import parse_addresses

STAGING = 2**30
"""Bytes of host memory for blocks that come and go, where a role is given and --host-kv-memory is not. Pages of it are
taken as they are written to."""


def read_options(options: dict[str, object], *, find: Callable[[str], Path] | None = None) -> ServerConfig:
    """``find`` takes the place of ``engine.weights.source.locate``.

    Raises ``StartupError`` for a value that makes no sense, or a model that cannot be found.
    """
    from engine.weights.source import DEMO, DEMO_DRAFT, is_url, locate

    find = find or locate
    rest = dict(options)
    given = rest.pop("model", None)
    if not given:
        raise StartupError("There is no model to serve: give --model, or --models FILE.")
    model = str(given[0] if isinstance(given, list) else given).rstrip("/")
    name = str(
        rest.pop("served_model_name", "")
        or (Path(model).name.removesuffix(".gguf") if is_url(model) or Path(model).exists() else model)
    )
    server: dict[str, object] = {
        key: rest.pop(key)
        for key in (
            "any_model_name",
            "host",
            "port",
            "share_port",
            "standby_port",
            "uds",
            "leave_with_stdin",
            "sleep_mode",
            "adapter_token_file",
            "adapter_folders",
            "max_adapter_bytes",
            "max_body_bytes",
            "drain_timeout",
            "step_timeout",
            "write_timeout",
            "over_context",
            "max_string_length",
            "otlp_traces_endpoint",
            "otlp_traces_protocol",
        )
        if key in rest
    }
    if "adapter_folders" in server:
        server["adapter_folders"] = tuple(cast(list[Path], server["adapter_folders"]))
    server = {**traces_by_environment(os.environ), **server}
    if "adapters" in rest:
        rest["adapters"] = tuple(cast(list[tuple[str, Path]], rest["adapters"]))
    if "digests" in rest:
        rest["digests"] = tuple(cast(list[tuple[str, str]], rest["digests"]))
    if "nodes" in rest:
        rest["nodes"] = parse_addresses(str(rest["nodes"]), "--nodes")
    if "context_caps" in rest:
        rest["context_caps"] = tuple(cast(list[tuple[int, int]], rest["context_caps"]))
    if "prefill_from" in rest:
        rest["prefill_from"] = tuple(cast(list[str], rest["prefill_from"]))
    if "role" in rest:
        rest.setdefault("host_kv_memory", STAGING)
    if "draft_model" in rest:
        draft = str(rest["draft_model"])
        rest["draft_model"] = find(DEMO_DRAFT if draft == DEMO else draft)
        rest.setdefault("speculation", draft_kind(cast(Path, rest["draft_model"])))
    named = {"served_model_name": name, "given_model_name": model}
    return ServerConfig(engine=EngineConfig(model=find(model), **rest), **named, **server)  # type: ignore[arg-type]


def traces_by_environment(env: Mapping[str, str]) -> dict[str, object]:
    """Where traces go by OpenTelemetry's own variables
    (https://opentelemetry.io/docs/specs/otel/protocol/exporter/). What is not set is not in it.
    """
    named = "OTEL_EXPORTER_OTLP_TRACES_"
    protocol = env.get(f"{named}PROTOCOL") or env.get("OTEL_EXPORTER_OTLP_PROTOCOL") or ""
    found: dict[str, object] = {"otlp_traces_protocol": "grpc"} if protocol == "grpc" else {}
    if endpoint := env.get(f"{named}ENDPOINT"):
        found["otlp_traces_endpoint"] = endpoint
    elif endpoint := env.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        path = "" if protocol == "grpc" else "/v1/traces"
        found["otlp_traces_endpoint"] = endpoint.rstrip("/") + path
    return found
