"""What traces and metrics by OTLP cost the gateway, by processor time: off, sampled at a share, and all traced.

    python -m benchmarks.telemetry [--repeats 9] [--requests 3000]

Gateways that differ only in their ``telemetry`` take turns within every repeat, in another order each time; a receiver
that discards what comes runs on the load generator's core. The gateway's threads that export count as the gateway's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.processes import free_port, running, wait_for
from benchmarks.proxies import ask, start_gateway

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
MODES: Mapping[str, Mapping[str, object] | None] = {
    "off": None,
    "sampled at 10 %": {"sample": 0.1},
    "sampled at 10 %, no metrics": {"sample": 0.1, "metrics": False},
    "metrics alone": {"traces": False},
    "all traced": {"sample": 1.0},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument(
        "--only", nargs="*", default=[], help="modes whose name has one of these words, besides off"
    )
    parser.add_argument("--receive", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive:
        asyncio.run(_receive(options.receive))
        return
    cores = sorted(os.sched_getaffinity(0))
    proxy, load = {cores[0]}, {cores[-1]}
    with ExitStack() as stack:
        upstream, receiver = free_port(), free_port()
        stack.enter_context(
            running([sys.executable, "-m", "benchmarks.load", "serve", str(upstream)], cores=load)
        )
        stack.enter_context(
            running([sys.executable, "-m", "benchmarks.telemetry", "--receive", str(receiver)], cores=load)
        )
        wait_for(upstream)
        gateways = {}
        chosen = [
            mode
            for mode in MODES
            if mode == "off" or not options.only or any(word in mode for word in options.only)
        ]
        for mode in chosen:
            keys = MODES[mode]
            telemetry = (
                {"telemetry": {"endpoint": f"http://127.0.0.1:{receiver}", "interval": "10s", **keys}}
                if keys
                else {}
            )
            gateways[mode] = start_gateway(stack, upstream, cores=proxy, name=mode, more=telemetry)
        found: dict[str, list[float]] = {mode: [] for mode in chosen}
        order = chosen
        for repeat in range(options.repeats + 1):
            for mode in order:
                result = ask(
                    gateways[mode], load, connections=32, requests=options.requests, stream=options.stream
                )
                if repeat:  # the first warms up
                    found[mode].append(result["processor_us"])
            order = [*order[1:], order[0]]
    print("| telemetry | processor time a request | beside off | least | beside off |\n|---|---|---|---|---|")
    for mode, times in found.items():
        ratio = statistics.median(one / off for one, off in zip(times, found["off"], strict=True))
        least = min(times) / min(found["off"])
        print(
            f"| {mode} | {statistics.median(times):.0f} µs | {100 * (ratio - 1):+.1f} % "
            f"| {min(times):.0f} µs | {100 * (least - 1):+.1f} % |"
        )


async def _receive(port: int) -> None:
    """Reads requests and answers each with 200."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
                writer.write(_ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    main()
