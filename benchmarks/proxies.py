"""What stands between load generator and static upstream: Tollgate as it is by default, the bare relay, its peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import yaml

from benchmarks.processes import ROOT, free_port, processor_seconds, running, wait_for

KEY = "tg-benchmark"
MODELS = ("static", "short", "long", "trickled", "trickled-slowly")
"""What the static upstream knows."""


@dataclass
class Candidate:
    name: str
    port: int
    headers: list[str] = field(default_factory=list)
    slow: bool = False
    """Gets a twentieth of the requests."""
    streams: bool = True
    pids: list[int] = field(default_factory=list)
    metrics_token: str = ""
    """Of its ``/metrics``, if these have the event loop's lag."""


def policy(upstream: int, store: str) -> dict[str, object]:
    """Authentication, quotas of key and tenant, a budget, tiers, a fallback, prices; all else is the default."""
    backend = {"kind": "openai", "base_url": f"http://127.0.0.1:{upstream}/v1"}
    tenant = {"tier": "pro", "quotas": {"tokens_per_day": 10**12}, "budget": {"usd_per_month": 1e6}}
    key = {"id": "bench", "sha256": sha256(KEY.encode()).hexdigest(), "tenant": "acme"}
    return {
        "version": 1,
        "store": store,
        "backends": {"up": backend},
        "models": {
            **{
                name: {"targets": [{"backend": "up", "model": name}], "fallbacks": ["other"]}
                for name in MODELS
            },
            "other": {"targets": [{"backend": "up", "model": "other"}]},
        },
        "prices": {name: {"input": 0.15, "output": 0.6} for name in (*MODELS, "other")},
        "tiers": {"pro": {"priority": 1, "weight": 3.0}, "free": {}},
        "tenants": {"acme": tenant},
        "keys": [{**key, "quotas": {"requests_per_minute": 10**9, "tokens_per_minute": 10**10}}],
    }


def start_gateway(
    stack: ExitStack,
    upstream: int,
    *,
    cores: set[int],
    workers: int = 1,
    store: str = "memory",
    name: str = "Tollgate",
    more: Mapping[str, object] | None = None,
) -> Candidate:
    """``tollgate serve`` as it is by default; ``more`` goes into its policy."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    (folder / "gateway.yaml").write_text(yaml.safe_dump({**policy(upstream, store), **(more or {})}))
    port = free_port()
    argv = [sys.executable, "-m", "gateway", "serve", "--policies", str(folder), "--port", str(port)]
    # A page of metrics is not served again: one is read before and one after a workload.
    env = {"TOLLGATE_STATE_DIR": str(folder / "state"), "TOLLGATE_METRICS_AGE": "0"}
    pid = stack.enter_context(running([*argv, "--workers", str(workers)], cores=cores, env=env))
    wait_for(port, "/healthz")
    time.sleep(1.0)
    token = (folder / "state" / "metrics-token").read_text().strip()
    return Candidate(name, port, [f"authorization: Bearer {KEY}"], pids=[pid], metrics_token=token)


def start_relay(stack: ExitStack, upstream: int, cores: set[int]) -> Candidate:
    port = free_port()
    argv = [sys.executable, "-m", "uvicorn", "benchmarks.relay:app", "--port", str(port)]
    argv += ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    pid = stack.enter_context(running(argv, cores=cores, env={"UPSTREAM": f"http://127.0.0.1:{upstream}"}))
    wait_for(port)
    return Candidate("bare relay (ASGI + aiohttp)", port, pids=[pid])


def start_litellm(stack: ExitStack, upstream: int, cores: set[int], python: Path) -> Candidate:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    entry = {"model": "openai/static", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "k"}
    config = {
        "model_list": [{"model_name": "static", "litellm_params": entry}],
        "general_settings": {"master_key": "sk-bench"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    argv = [
        str(python.parent / "litellm"),
        "--config",
        str(folder / "config.yaml"),
        "--port",
        str(port),
        "--host",
    ]
    env = {"LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    stack.enter_context(running([*argv, "127.0.0.1"], cores=cores, env=env, cwd=folder))
    wait_for(port, "/health/liveliness")
    return Candidate("LiteLLM proxy", port, ["authorization: Bearer sk-bench"], slow=True)


def start_portkey(stack: ExitStack, upstream: int, cores: set[int], folder: Path) -> Candidate:
    port = free_port()
    server = folder / "node_modules/@portkey-ai/gateway/build/start-server.js"
    argv = ["node", str(server), f"--port={port}", "--headless"]
    stack.enter_context(
        running(argv, cores=cores, env={"TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost"}, cwd=folder)
    )
    wait_for(port)
    headers = ["x-portkey-provider: openai", f"x-portkey-custom-host: http://127.0.0.1:{upstream}/v1"]
    return Candidate("Portkey gateway", port, [*headers, "authorization: Bearer k"], slow=True)


def ask(
    candidate: Candidate,
    cores: set[int],
    *,
    connections: int,
    requests: int,
    stream: bool = False,
    more: Sequence[str] = (),
) -> dict[str, float]:
    """``more`` are arguments to the load generator. ``processor_us`` is what a request took, where it can be told."""
    argv = [
        sys.executable,
        "-m",
        "benchmarks.load",
        "ask",
        str(candidate.port),
        "--connections",
        str(connections),
    ]
    argv += ["--requests", str(requests), *(["--stream"] if stream else [])]
    argv += [part for header in candidate.headers for part in ("--header", header)]
    before = sum(map(processor_seconds, candidate.pids))
    result = generated([*argv, *more], candidate.name, cores)
    used = sum(map(processor_seconds, candidate.pids)) - before
    return {**result, "processor_us": used / result["requests"] * 1e6}


def generated(argv: list[str], name: str, cores: set[int]) -> dict[str, float]:
    """What a load generator printed that ran on ``cores``; leaves the program if a request of ``name``'s failed."""
    done = subprocess.run(
        argv,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    result: dict[str, float] = json.loads(done.stdout)
    failure = result.pop("failure", "")
    if result["failed"]:
        raise SystemExit(f"{name}: {result['failed']:.0f} requests failed, the first with\n{failure}")
    return result
