"""Swaps of a launched engine under load: how many requests are lost, and how long callers wait meanwhile.

    python -m benchmarks.engine_swaps [--swaps 10] [--rate 60] [--stop-first]

``tollgate serve`` with the bundled engine and its demo model. The engine's entry is edited again and again, while
requests come at a constant rate, half of them streamed; the next edit follows when the engine before has ended. Lost is
every request that does not get its whole answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.processes import free_port, running, wait_for
from gateway.identity.api_keys import hash_key

KEY = "tg-swaps"
WORDS = 8
"""Tokens of an answer."""


def policy(port: int, swap: int, *, stop_first: bool) -> dict[str, Any]:
    engine = {
        "kind": "engine",
        "launch": True,
        "base_url": f"http://127.0.0.1:{port}",
        "args": ["--max-waiting", str(1000 + swap)],
        "stop_first": stop_first,
    }
    return {
        "version": 1,
        "backends": {"own": engine},
        "models": {"demo": {"targets": [{"backend": "own", "model": "demo"}]}},
        "keys": [{"id": "swaps", "sha256": hash_key(KEY)}],
    }


class Load:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.seconds: list[float] = []
        self.lost: list[str] = []

    async def one(self, number: int) -> None:
        stream = number % 2 == 0
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": f"Count from {number}."}],
            "max_tokens": WORDS,
            "stream": stream,
        }
        began = time.perf_counter()
        try:
            answer = await self._http.post("/v1/chat/completions", json=body)
            whole = "data: [DONE]" in answer.text if stream else "choices" in answer.text
            if answer.status_code != 200 or not whole or '"error"' in answer.text:
                self.lost.append(f"{answer.status_code} {answer.text[:200]}")
        except httpx.TransportError as error:
            self.lost.append(repr(error))
        self.seconds.append(time.perf_counter() - began)

    async def run(self, rate: float, until: asyncio.Event) -> None:
        began, number = time.perf_counter(), 0
        asking: set[asyncio.Task[None]] = set()
        while not until.is_set():
            task = asyncio.create_task(self.one(number))
            asking.add(task)
            task.add_done_callback(asking.discard)
            number += 1
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        await asyncio.gather(*asking)


def engines(port: int) -> set[int]:
    """Process ids of the engines that are to have this port, the HTTP side."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_text().split("\0")
            except OSError:
                continue
            wrapper = any(word.endswith("die_with_parent.py") for word in command)
            if {"engine", str(port), "--share-port"} <= {*command} and not wrapper:
                found.add(int(entry.name))
    return found


async def measure(folder: Path, swaps: int, rate: float, *, stop_first: bool) -> None:
    policies = folder / "policies"
    policies.mkdir()
    file, port, engine_port = policies / "gateway.yaml", free_port(), free_port()

    def write(swap: int) -> None:
        file.with_suffix(".new").write_text(yaml.safe_dump(policy(engine_port, swap, stop_first=stop_first)))
        file.with_suffix(".new").replace(file)

    write(0)
    env = {"TOLLGATE_STATE_DIR": str(folder), "TOLLGATE_SHUTDOWN_DELAY": "0", "PYTHONPATH": str(Path.cwd())}
    argv = [sys.executable, "-m", "gateway", "serve", "--policies", str(policies), "--port", str(port)]
    with running(argv, cores=os.sched_getaffinity(0), env=env):
        wait_for(port, "/healthz", seconds=300)
        headers = {"authorization": f"Bearer {KEY}"}
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=300, limits=limits, trust_env=False
        ) as http:
            while (await http.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            load, stop = Load(http), asyncio.Event()
            under_way = asyncio.create_task(load.run(rate, stop))
            times = []
            for swap in range(1, swaps + 1):
                before, began = engines(engine_port), time.perf_counter()
                write(swap)
                while len(now := engines(engine_port)) != 1 or now & before:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                times.append(time.perf_counter() - began)
                await asyncio.sleep(0.5)
            stop.set()
            await under_way
    waits = sorted(load.seconds)
    print("| swaps | requests | lost | a swap, median | an answer, median | 99 % | longest |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    shown = [
        f"{waits[len(waits) // 2]:.3f} s",
        f"{waits[int(len(waits) * 0.99)]:.2f} s",
        f"{waits[-1]:.1f} s",
    ]
    print(
        f"| {swaps} | {len(waits)} | {len(load.lost)} | {statistics.median(times):.1f} s | {' | '.join(shown)} |"
    )
    for why in dict.fromkeys(load.lost):
        print(f"lost: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--swaps", type=int, default=10)
    parser.add_argument("--rate", type=float, default=60.0)
    parser.add_argument("--stop-first", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), given.swaps, given.rate, stop_first=given.stop_first))


if __name__ == "__main__":
    main()
