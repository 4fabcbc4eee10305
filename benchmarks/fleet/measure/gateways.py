"""A real gateway in front of 1 to 1,000 replicas: addresses of 127.0.0.0/8, behind which is one server."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack

from benchmarks.processes import free_port, processor_seconds, resident, running, wait_for
from benchmarks.proxies import ask, start_gateway

REPLICAS = (1, 10, 100, 300, 1000)
SELECTS = ("weighted", "least_loaded", "prefix_affinity")
WINDOW = 6.0
"""Seconds in which an idle gateway's polls are counted."""


def addresses(port: int, count: int) -> list[str]:
    """So many of this machine's own: Linux answers for all of 127.0.0.0/8."""
    return [f"http://127.1.{number // 250}.{number % 250 + 1}:{port}/v1" for number in range(count)]


def gateways(requests: int) -> None:
    """Processor time of a request and of an idle second, and memory, by the number of replicas."""
    cores = set(range(2))
    print("| replicas | select | telemetry | µs a request | idle, share of a core | MiB |")
    print("|--:|---|---|--:|--:|--:|")
    with ExitStack() as outer:
        port = free_port()
        outer.enter_context(
            running([sys.executable, "-m", "benchmarks.fleet.upstream", str(port)], cores=cores)
        )
        wait_for(port, "/v1/engine/state")
        for count in REPLICAS:
            for select, kind in [*((select, "openai") for select in SELECTS), ("least_loaded", "engine")]:
                with ExitStack() as stack:
                    found = _one_gateway(stack, port, count, select, kind, requests)
                print(f"| {count} | {select} | {kind} | {found} |", flush=True)


def _one_gateway(stack: ExitStack, port: int, count: int, select: str, kind: str, requests: int) -> str:
    base = addresses(port, count)
    if kind == "engine":
        base = [url.removesuffix("/v1") for url in base]
    up = {"kind": kind, "replicas": base} if count > 1 else {"kind": kind, "base_url": base[0]}
    models = {"static": {"targets": [{"backend": "up", "model": "static"}], "select": select}}
    more = {"backends": {"up": up}, "models": models, "prices": {"static": {"input": 0.15, "output": 0.6}}}
    gateway = start_gateway(stack, port, cores=set(range(2)), more=more)
    ask(gateway, set(range(2)), connections=8, requests=max(200, 2 * count))
    time.sleep(2.0)
    before = processor_seconds(gateway.pids[0])
    time.sleep(WINDOW)
    idle = (processor_seconds(gateway.pids[0]) - before) / WINDOW
    found = ask(gateway, set(range(2)), connections=16, requests=requests)
    busy = found["processor_us"] - idle * found["seconds"] * 1e6 / found["requests"]
    return f"{busy:.0f} | {idle:.1%} | {resident(gateway.pids[0]):.0f}"
