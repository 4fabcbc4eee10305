"""What does the gateway cost? Requests/s, latency, chunks/s and memory against a bare relay, and against its peers.

    python -m benchmarks.overhead [--repeats 5] [--scale 1.0] [--only WORD …] [--json FILE]
                                  [--litellm PYTHON] [--portkey FOLDER] [--memory]

What is measured is what ``tollgate serve`` runs by default: its log at ``info`` to a pipe, ledger, receipts, quotas,
metrics. A static server answers every request alike. The proxy under test has one core to itself, the server and the
load generator share another. The table has a row for each of ``benchmarks/workloads.py``: bodies and answers of several
sizes, tools, exact hits, a Redis store, streams in bunches and chunk by chunk, with and without guards. Relay
(``benchmarks/relay.py``) and gateway take turns within every repeat. Processor time says most on a machine that does
other work as well; it is that of all the gateway's processes, by the request, or by the chunk of a stream.

--only WORD        rows whose name has one of these words
--litellm PYTHON   also a table of proxies: the Python of an environment with ``litellm[proxy]``
--portkey FOLDER   likewise: a folder in which ``npm install @portkey-ai/gateway`` was run
--memory           also: resident memory over 200,000 requests
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.processes import free_port, resident, running, wait_for
from benchmarks.proxies import Candidate, ask, start_gateway, start_litellm, start_portkey, start_relay


def compare(
    candidates: list[Candidate], cores: set[int], repeats: int, scale: float
) -> list[dict[str, float | str]]:
    runs: dict[str, list[dict[str, float]]] = {candidate.name: [] for candidate in candidates}
    for candidate in candidates:
        ask(candidate, cores, connections=8, requests=60)
        try:
            ask(candidate, cores, connections=4, requests=8, stream=True)
        except (SystemExit, subprocess.CalledProcessError):
            if not candidate.slow:
                raise
            candidate.streams = False
            print(f"{candidate.name} does not stream this server's answers")
    for _ in range(repeats):
        for candidate in candidates:
            part = scale * (0.05 if candidate.slow else 1.0)
            many = ask(candidate, cores, connections=32, requests=int(8000 * part))
            alone = ask(candidate, cores, connections=1, requests=int(2000 * part))
            streams = {"chunks_per_second": 0.0}
            if candidate.streams:
                streams = ask(candidate, cores, connections=16, requests=int(600 * part), stream=True)
            runs[candidate.name].append(
                {
                    "requests_per_second": many["requests_per_second"],
                    "processor_us": many["processor_us"],
                    "p99_ms": many["p99_ms"],
                    "alone_ms": alone["p50_ms"],
                    "chunks_per_second": streams["chunks_per_second"],
                }
            )
    return [{"name": name, **_medians(results)} for name, results in runs.items()]


def _medians(results: list[dict[str, float]]) -> dict[str, float]:
    return {what: statistics.median(result[what] for result in results) for what in results[0]}


def show(rows: list[dict[str, float | str]]) -> None:
    base = rows[0]
    print(
        "| proxy | requests/s | ratio | processor time | p99 at 32 | p50 alone | added | chunks/s | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        rps, cps, alone = (float(row[w]) for w in ("requests_per_second", "chunks_per_second", "alone_ms"))
        added = alone - float(base["alone_ms"])
        print(
            f"| {row['name']} | {rps:,.0f} | {rps / float(base['requests_per_second']):.3f} "
            f"| {_microseconds(float(row['processor_us']))} | {float(row['p99_ms']):.1f} ms "
            f"| {alone:.2f} ms | {added:+.2f} ms | {cps:,.0f} | {cps / float(base['chunks_per_second']):.3f} |"
        )


def _microseconds(time: float) -> str:
    return f"{time:.0f} µs" if time else "–"


def memory(
    upstream: int, proxy: set[int], load: set[int], requests: int = 200_000
) -> list[tuple[int, float]]:
    with ExitStack() as stack:
        gateway = start_gateway(stack, upstream, cores=proxy)
        points = [(0, resident(gateway.pids[0]))]
        step = requests // 10
        for number in range(1, 11):
            ask(gateway, load, connections=32, requests=step)
            points.append((number * step, resident(gateway.pids[0])))
    return points


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of requests (1.0)")
    parser.add_argument("--litellm", type=Path, metavar="PYTHON")
    parser.add_argument("--portkey", type=Path, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    first, *others = sorted(os.sched_getaffinity(0))
    proxy, load = {first}, set(others) or {first}
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        upstream = free_port()
        stack.enter_context(
            running([sys.executable, "-m", "benchmarks.load", "serve", str(upstream)], cores=load)
        )
        wait_for(upstream)
        found["workloads"] = workloads.run(upstream, proxy, load, given.repeats, given.scale, given.only)
        if given.litellm or given.portkey:
            with ExitStack() as proxies:
                candidates = [
                    start_relay(proxies, upstream, proxy),
                    start_gateway(proxies, upstream, cores=proxy),
                ]
                if given.litellm:
                    candidates.append(start_litellm(proxies, upstream, proxy, given.litellm))
                if given.portkey:
                    candidates.append(start_portkey(proxies, upstream, proxy, given.portkey))
                found["proxies"] = compare(candidates, load, given.repeats, given.scale)
            show(found["proxies"])
        if given.memory:
            points = memory(upstream, proxy, load)
            print("\n| requests | resident MiB |\n|---|---|")
            for requests, size in points:
                print(f"| {requests:,} | {size:.1f} |")
            found["memory"] = points
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
