"""How much memory does a worker take? MiB of one before its first request, and as it goes on.

    python -m benchmarks.memory [--repeats 3] [--requests 1000 20000 60000]

``tollgate serve`` with one worker, no guards, and all else by default: log at ``info`` to a pipe, ledger, receipts,
quotas (``benchmarks.proxies.policy``). 32 connections ask a static server. Rss counts each page that is mapped, Pss
those that other processes map, too, in part. Medians of the repeats.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.processes import free_port, running, wait_for
from benchmarks.proxies import ask, start_gateway

SETTLE = 2.0
"""Seconds after the last answer, in which receipts and ledger are written."""


def rollup(pid: int) -> tuple[float, float]:
    """MiB of a process: Rss and Pss."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return int(fields["Rss"].split()[0]) / 1024, int(fields["Pss"].split()[0]) / 1024


def worker_of(supervisor: int) -> int:
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return next(
        int(pid) for pid in children if b"gateway.process.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def measure(requests: list[int], cores: set[int]) -> list[tuple[float, float, float]]:
    """Rss and Pss of the worker and Rss of the supervisor: before the first request, and after so many."""
    with ExitStack() as stack:
        upstream = free_port()
        serve = [sys.executable, "-m", "benchmarks.load", "serve", str(upstream)]
        stack.enter_context(running(serve, cores=cores))
        wait_for(upstream)
        gateway = start_gateway(stack, upstream, cores=cores)
        supervisor = gateway.pids[0]
        worker = worker_of(supervisor)
        found, done = [(*rollup(worker), rollup(supervisor)[0])], 0
        for count in requests:
            ask(gateway, cores, connections=32, requests=count - done)
            done = count
            time.sleep(SETTLE)
            found.append((*rollup(worker), rollup(supervisor)[0]))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, nargs="+", default=[1000, 20_000, 60_000])
    given = parser.parse_args()
    requests, cores = sorted(given.requests), os.sched_getaffinity(0)
    runs = [measure(requests, cores) for _ in range(given.repeats)]
    print("| requests | worker, Rss | worker, Pss | supervisor, Rss |\n|---|---|---|---|")
    for number, count in enumerate([0, *requests]):
        columns = (statistics.median(run[number][column] for run in runs) for column in range(3))
        print(f"| {count:,} | {' | '.join(f'{column:.1f}' for column in columns)} |")


if __name__ == "__main__":
    main()
