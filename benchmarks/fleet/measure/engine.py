"""The HTTP process of an engine with the demo model."""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.processes import free_port, running, wait_for


def engine(polls: int) -> None:
    """What its HTTP process takes: of a look at its state, and of a token that it streams."""
    argv = [sys.executable, "-m", "engine", "serve", "--model", "demo", "--port", str(port := free_port())]
    with running(argv, cores=set(range(2))) as pid:
        wait_for(port, "/health")
        ask = http.client.HTTPConnection("127.0.0.1", port)

        def times(count: int, how: Callable[[], object]) -> float:
            how()
            before = _own_seconds(pid)
            for _ in range(count):
                how()
            return (_own_seconds(pid) - before) / count

        def poll() -> None:
            ask.request("GET", "/v1/engine/state")
            ask.getresponse().read()

        body = json.dumps(
            {
                "model": "demo",
                "prompt": "Tell me about tea.",
                "max_tokens": 256,
                "stream": True,
                "ignore_eos": True,
            }
        )

        def stream(_: int) -> int:
            asking = http.client.HTTPConnection("127.0.0.1", port)
            asking.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            return asking.getresponse().read().count(b"data: ")

        print("\n| engine's HTTP process | µs |\n|---|--:|")
        print(f"| a look at its state | {times(polls, poll) * 1e6:.0f} |", flush=True)
        for at_once in (1, 16, 64):
            with ThreadPoolExecutor(at_once) as pool:
                list(pool.map(stream, range(at_once)))
                before = _own_seconds(pid)
                events = sum(pool.map(stream, range(max(8, 2 * at_once))))
                took = _own_seconds(pid) - before
            print(f"| a streamed token, {at_once} streams at once | {took / events * 1e6:.0f} |", flush=True)


def _own_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
