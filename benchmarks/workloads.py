"""What requests of different kinds cost the gateway, by processor time, beside the relay: the table of ``overhead``."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from benchmarks import lag
from benchmarks.processes import free_port, running
from benchmarks.proxies import Candidate, ask, start_gateway, start_relay

POLICIES: Mapping[str, Mapping[str, object]] = {
    "default": {},
    "cached": {"caches": {"exact": {"ttl": "1h"}}},
    "PII": {
        "guards": {
            "pii": {
                "on": ["output"],
                "action": "mask",
                "stream": "windowed",
                "entities": ["EMAIL_ADDRESS", "PHONE_NUMBER"],
            }
        }
    },
    "toxicity": {
        "guards": {
            "toxicity": {"on": ["output"], "action": "block", "stream": "optimistic", "checks": ["fast"]}
        }
    },
    "redis": {},
    "redis-2": {},
}
"""What is added to the policy that all share (``benchmarks/proxies.py``)."""
WORKERS = {"redis-2": 2}
STORES = ("redis", "redis-2")


class Workload(NamedTuple):
    name: str
    requests: int
    connections: int = 32
    stream: bool = False
    more: tuple[str, ...] = ()
    """Arguments to the load generator."""
    policy: str = "default"


def _streams(name: str, requests: int, connections: int, model: str) -> tuple[Workload, ...]:
    """Without a guard, and with each of two."""
    more = ("--model", model)
    guards = (("", "default"), (", PII guard", "PII"), (", toxicity guard", "toxicity"))
    return tuple(
        Workload(name + guard, requests, connections, stream=True, more=more, policy=policy)
        for guard, policy in guards
    )


WORKLOADS = (
    Workload("32 connections", 8000),
    Workload("1 connection", 2000, connections=1),
    *(
        Workload(f"body of {kib:g} KiB", 3000, more=("--size", str(int(kib * 1024))))
        for kib in (0.3, 4, 16, 64)
    ),
    Workload("10 tools", 3000, more=("--tools", "10")),
    Workload("answer of 0.5 KiB", 3000, more=("--model", "short")),
    Workload("answer of 16 KiB", 3000, more=("--model", "long")),
    Workload("exact hit", 6000, policy="cached"),
    Workload("Redis store", 3000, policy="redis"),
    Workload("Redis store, 2 workers", 3000, policy="redis-2"),
    *_streams("16 streams, in bunches", 400, 16, "static"),
    *_streams("100 streams, one by one", 300, 100, "trickled"),
    *_streams("1,000 streams, one by one", 1000, 1000, "trickled-slowly"),
)
"""Streams are counted by the chunk, all else by the request."""


def run(
    upstream: int, proxy: set[int], load: set[int], repeats: int, scale: float, only: list[str]
) -> list[dict[str, Any]]:
    """Medians, printed as they come; the relay does the same without guards, caches and stores. ``only``: words."""
    chosen = [work for work in WORKLOADS if not only or any(word in work.name for word in only)]
    program = shutil.which("redis-server")
    if program is None:
        chosen = [work for work in chosen if work.policy not in STORES]
        print("redis-server is not on PATH: its rows are left out")
    with ExitStack() as stack:
        relay = start_relay(stack, upstream, proxy)
        gateways: dict[str, Candidate] = {}
        for policy in dict.fromkeys(work.policy for work in chosen):
            workers = WORKERS.get(policy, 1)
            gateways[policy] = start_gateway(
                stack,
                upstream,
                cores=proxy if workers == 1 else os.sched_getaffinity(0),
                workers=workers,
                store=_redis(stack, program, load) if program and policy in STORES else "memory",
                name=policy,
                more=POLICIES[policy],
            )
        print(HEAD, flush=True)
        rows = []
        for work in chosen:
            rows += [_compare(work, relay, gateways[work.policy], load, repeats, scale)]
            print(line(rows[-1]), flush=True)
        return rows


def _redis(stack: ExitStack, program: str, cores: set[int]) -> str:
    port = free_port()
    argv = [program, "--port", str(port), "--save", "", "--appendonly", "no"]
    stack.enter_context(running(argv, cores=cores))
    return f"redis://127.0.0.1:{port}/0"


def _compare(
    work: Workload, relay: Candidate, gateway: Candidate, load: set[int], repeats: int, scale: float
) -> dict[str, Any]:
    theirs: list[dict[str, float]] = []
    ours: list[dict[str, float]] = []
    for repeat in range(repeats + 1):
        for candidate, found in ((relay, theirs), (gateway, ours)):
            result = _one(work, candidate, load, scale)
            if repeat:  # the first warms up, and fills the cache
                found.append(result)
    # Each repeat's own ratio: what else the machine does changes from one repeat to the next.
    ratio = statistics.median(
        one["processor_us"] / two["processor_us"] if two["processor_us"] else 0.0
        for one, two in zip(theirs, ours, strict=True)
    )
    return {
        "name": work.name,
        "stream": work.stream,
        "ratio": ratio,
        "relay": _medians(theirs),
        "tollgate": _medians(ours),
    }


def _medians(results: list[dict[str, float]]) -> dict[str, float]:
    return {what: statistics.median(result[what] for result in results) for what in results[0]}


def _one(work: Workload, candidate: Candidate, load: set[int], scale: float) -> dict[str, float]:
    """``processor_us`` is a chunk's where there are chunks."""
    before = lag.read(candidate.port, candidate.metrics_token) if candidate.metrics_token else {}
    result = ask(
        candidate,
        load,
        connections=work.connections,
        requests=max(work.connections, int(work.requests * scale)),
        stream=work.stream,
        more=work.more,
    )
    if candidate.metrics_token:
        result |= lag.between(before, lag.read(candidate.port, candidate.metrics_token))
    if work.stream:
        result["processor_us"] *= result["requests"] / result["chunks"]
    return result


HEAD = (
    "| workload | relay, processor time | Tollgate | relay / Tollgate | a processor second | chunks a read "
    "| requests/s | p50 | added | p99 | added | lag p99 | lag ≤ 5 ms |\n|---|---|---|---|---|---|---"
    "|---|---|---|---|---|---|"
)


def line(row: dict[str, Any]) -> str:
    theirs, ours = row["relay"], row["tollgate"]
    each = ours["processor_us"]
    what = "chunks" if row["stream"] else "requests"
    reads = f"{ours['chunks'] / ours['reads']:.1f}" if row["stream"] else ""
    added = [
        "" if row["stream"] else f"{ours[point] - theirs[point]:+.2f} ms" for point in ("p50_ms", "p99_ms")
    ]
    return (
        f"| {row['name']} | {theirs['processor_us']:.1f} µs | {each:.1f} µs | {row['ratio']:.2f} "
        f"| {1e6 / each if each else 0:,.0f} {what} | {reads} | {ours['requests_per_second']:,.0f} "
        f"| {ours['p50_ms']:.2f} ms | {added[0]} | {ours['p99_ms']:.2f} ms | {added[1]} "
        f"| {ours['lag_p99_ms']:.1f} ms | {ours['lag_met']:.1%} |"
    )
