"""What requests of different kinds cost the gateway, by processor time, beside the relay: a table for ``overhead``."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Any, NamedTuple

from benchmarks.proxies import Candidate, ask, start_gateway, start_relay

_PII = {"pii": {"on": ["output"], "action": "mask", "entities": ["EMAIL_ADDRESS", "PHONE_NUMBER"]}}
_TOXICITY = {"toxicity": {"on": ["output"], "action": "block", "stream": "optimistic"}}


class Work(NamedTuple):
    name: str
    requests: int
    connections: int = 32
    stream: bool = False
    more: tuple[str, ...] = ()
    policy: str = "default"


WORK = (
    *(Work(f"body of {kib:g} KiB", 3000, more=("--size", str(int(kib * 1024)))) for kib in (0.3, 4, 16, 64)),
    Work("10 tools", 3000, more=("--tools", "10")),
    Work("answer of 16 KiB", 3000, more=("--model", "long")),
    Work("exact hit", 6000, policy="cached"),
    Work("stream in bunches", 600, 16, stream=True),
    Work("the same, PII guard", 200, 16, stream=True, policy="PII"),
    Work("the same, toxicity guard", 200, 16, stream=True, policy="toxicity"),
    Work("100 streams, trickled", 300, 100, stream=True, more=("--model", "trickled")),
    Work("the same, PII guard", 300, 100, stream=True, more=("--model", "trickled"), policy="PII"),
    Work("1,000 streams, trickled", 1000, 1000, stream=True, more=("--model", "trickled")),
)
"""Streams are told by the chunk, all else by the request."""


def run(upstream: int, proxy: set[int], load: set[int], repeats: int, scale: float) -> list[dict[str, Any]]:
    """Medians in microseconds; the relay does the same without guards and caches."""
    with ExitStack() as stack:
        relay = start_relay(stack, upstream, proxy)
        policies: dict[str, dict[str, object]] = {
            "default": {},
            "cached": {"caches": {"exact": {"ttl": "1h"}}},
            "PII": {"guards": _PII},
            "toxicity": {"guards": _TOXICITY},
        }
        gateways = {
            name: start_gateway(stack, upstream, cores=proxy, name=name, more=more)
            for name, more in policies.items()
        }
        rows = []
        for work in WORK:
            pair = (relay, gateways[work.policy])
            times: tuple[list[float], list[float]] = ([], [])
            for repeat in range(repeats + 1):
                for candidate, found in zip(pair, times, strict=True):
                    took = _one(work, candidate, load, scale)
                    if repeat:  # the first warms up, and fills the cache
                        found.append(took)
            theirs, ours = map(statistics.median, times)
            rows.append({"name": work.name, "relay_us": theirs, "tollgate_us": ours, "stream": work.stream})
    return rows


def _one(work: Work, candidate: Candidate, load: set[int], scale: float) -> float:
    requests = max(work.connections, int(work.requests * scale))
    result = ask(
        candidate,
        load,
        connections=work.connections,
        requests=requests,
        stream=work.stream,
        more=work.more,
    )
    each = result["chunks"] / result["requests"] if work.stream else 1.0
    return result["processor_us"] / each


def show(rows: list[dict[str, Any]]) -> None:
    print("\n| processor time of | relay | Tollgate | ratio | a processor second |\n|---|---|---|---|---|")
    for row in rows:
        theirs, ours = row["relay_us"], row["tollgate_us"]
        what = "chunks" if row["stream"] else "requests"
        print(
            f"| {row['name']} | {theirs:.1f} µs | {ours:.1f} µs | {theirs / ours if ours else 0:.2f} "
            f"| {1e6 / ours if ours else 0:,.0f} {what} |"
        )
