"""How fast is an answer that is given again? Exact hits a second, beside a static response of the same server.

    python -m benchmarks.caches [--repeats 5] [--requests 8000] [--json FILE]

One worker on a core of its own, the load generator on another, 32 connections. The candidates take turns within each
repeat; the table shows medians, and ratios to ``GET /healthz``, which is the same server's least answer. CPU is what
the server's processes and threads used for each request, the writing of ledger and receipts included: on a busy
machine its ratio tells more than that of the rates. The scripted backend's answer is what the gateway does for a
request without a cache and without a network.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import uvloop
import yaml

from benchmarks.load import Asker, Run
from benchmarks.processes import free_port, running, wait_for
from benchmarks.proxies import KEY, generated

ANSWER = "Hello! How can I help you today?"


@dataclass(frozen=True)
class Candidate:
    name: str
    method: str = "POST"
    path: str = "/v1/chat/completions"
    stream: bool = False
    headers: tuple[str, ...] = ()
    question: str = "Hello"
    key: str = KEY


STATIC = "GET /healthz"
LIMITED = KEY + "-limited"
CANDIDATES = (
    Candidate(STATIC, "GET", "/healthz"),
    Candidate("exact hit"),
    Candidate("exact hit, a question of 8,000 characters", question="Hello there! " * 615),
    Candidate("exact hit, streamed", stream=True),
    Candidate("exact hit, under quotas", key=LIMITED),
    Candidate("exact hit, under quotas, streamed", stream=True, key=LIMITED),
    Candidate("scripted backend (no-store)", headers=("cache-control: no-store",)),
    Candidate("scripted backend (no-store), streamed", stream=True, headers=("cache-control: no-store",)),
)


def policy() -> dict[str, Any]:
    """Authentication, a price, the ledger; one of the keys has quotas."""
    quotas = {"requests_per_minute": 10**9, "tokens_per_minute": 10**10}
    return {
        "version": 1,
        "backends": {"scripted": {"kind": "fake", "script": [{"reply": ANSWER}]}},
        "models": {"static": {"targets": [{"backend": "scripted", "model": "static"}]}},
        "prices": {"static": {"input": 0.15, "output": 0.6}},
        "keys": [_key(KEY, "bench"), {**_key(LIMITED, "limited"), "quotas": quotas}],
        "caches": {"exact": {}},
    }


def _key(text: str, id: str) -> dict[str, Any]:
    return {"id": id, "sha256": sha256(text.encode()).hexdigest(), "tenant": "acme"}


def request(candidate: Candidate) -> bytes:
    lines = [
        f"{candidate.method} {candidate.path} HTTP/1.1",
        "host: bench",
        f"authorization: Bearer {candidate.key}",
    ]
    lines += candidate.headers
    body = b""
    if candidate.method == "POST":
        messages = [{"role": "user", "content": candidate.question}]
        asked = {"model": "static", "messages": messages, "max_tokens": 64, "stream": candidate.stream}
        body = json.dumps(asked, separators=(",", ":")).encode()
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def load(port: int, candidate: Candidate, connections: int, requests: int) -> dict[str, float]:
    run = Run(request(candidate), requests=requests, stream=candidate.stream)
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    made = [await loop.create_connection(lambda: Asker(run), "127.0.0.1", port) for _ in range(connections)]
    await asyncio.gather(*(asker.left for _, asker in made))
    seconds = time.perf_counter() - began
    return {
        "failed": run.failed,
        "requests_per_second": len(run.times) / seconds,
        "p50_ms": statistics.median(run.times) * 1000,
    }


def ask(port: int, index: int, cores: set[int], connections: int, requests: int) -> dict[str, float]:
    argv = [sys.executable, "-m", "benchmarks.caches", "--load", str(port), str(index), str(connections)]
    return generated([*argv, str(requests)], CANDIDATES[index].name, cores)


def measure(repeats: int, requests: int) -> list[dict[str, Any]]:
    first, *others = sorted(os.sched_getaffinity(0))
    serving, asking = {first}, set(others) or {first}
    runs: list[list[dict[str, float]]] = [[] for _ in CANDIDATES]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "gateway.yaml").write_text(yaml.safe_dump(policy()))
        port = free_port()
        argv = [sys.executable, "-m", "gateway", "serve", "--policies", str(folder), "--port", str(port)]
        env = {"TOLLGATE_STATE_DIR": str(folder / "state"), "TOLLGATE_LOG_LEVEL": "warning"}
        server = stack.enter_context(running([*argv, "--workers", "1"], cores=serving, env=env))
        wait_for(port, "/healthz")
        for index in range(len(CANDIDATES)):
            ask(port, index, asking, 8, 200)
        for _ in range(repeats):
            for index in range(len(CANDIDATES)):
                before = cpu_seconds(server)
                many = ask(port, index, asking, 32, requests)
                time.sleep(0.3)  # the ledger's last batch
                cpu = (cpu_seconds(server) - before) / requests
                alone = ask(port, index, asking, 1, requests // 8)
                rate = many["requests_per_second"]
                runs[index].append(
                    {"requests_per_second": rate, "cpu_us": cpu * 1e6, "alone_ms": alone["p50_ms"]}
                )
    rows: list[dict[str, Any]] = []
    for candidate, results in zip(CANDIDATES, runs, strict=True):
        medians = {what: statistics.median([one[what] for one in results]) for what in results[0]}
        rows.append({"name": candidate.name, **medians})
    base, least = rows[0]["requests_per_second"], rows[0]["cpu_us"]
    return [
        {**row, "ratio": row["requests_per_second"] / base, "cpu_ratio": least / row["cpu_us"]}
        for row in rows
    ]


def cpu_seconds(process: int) -> float:
    """What ``process`` and its descendants have used so far (https://docs.kernel.org/scheduler/sched-stats.html)."""
    used = 0
    for task in Path(f"/proc/{process}/task").iterdir():
        used += int((task / "schedstat").read_text().split()[0])
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return used / 1e9 + sum(cpu_seconds(int(child)) for child in children)


def show(rows: Sequence[dict[str, Any]]) -> None:
    print("| answer | requests/s | ratio | CPU each | ratio | p50 alone |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        rate = f"{row['requests_per_second']:,.0f} | {row['ratio']:.2f}"
        cpu = f"{row['cpu_us']:.0f} µs | {row['cpu_ratio']:.2f}"
        print(f"| {row['name']} | {rate} | {cpu} | {row['alone_ms']:.2f} ms |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--load", nargs=4, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        port, index, connections, requests = given.load
        print(json.dumps(uvloop.run(load(port, CANDIDATES[index], connections, requests))))
        return
    rows = measure(given.repeats, given.requests)
    show(rows)
    if given.json:
        given.json.write_text(json.dumps({"table": rows}, indent=2))


if __name__ == "__main__":
    main()
