"""How long does the engine take to start with a real file, and how much memory? The first time and the second.

    python -m benchmarks.loading FILE.gguf [MORE.gguf …] [--repeats 3]

``python -m engine serve`` with all else by default, and a cache of weights of its own: *first* converts, *second* maps
what the first has left. Seconds are those that the engine logs (*all* is until it is ready), processor seconds those
of the engine process until then. Memory is of the engine process after one answer; *beside the file* is what it has
more than 1.2 times the file, in MiB. Medians of the repeats.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.processes import free_port, processor_seconds, running, wait_for


@dataclass(frozen=True, slots=True)
class Start:
    total: float
    """Seconds until the port answers."""
    model: float
    imports: float
    processor: float
    predicted: float
    """MiB, as those that follow."""
    weights: float
    process: float
    peak: float


def start(model: Path, cache: Path) -> Start:
    port = free_port()
    command = [sys.executable, "-m", "engine", "serve", "--model", str(model), "--port", str(port)]
    began = time.monotonic()
    cores = os.sched_getaffinity(0)
    with running([*command, f"--weights-cache={cache}", "--log-level=warning"], cores=cores) as server:
        wait_for(port, seconds=600)
        total = time.monotonic() - began
        engine = _engine_process(server)
        processor = processor_seconds(engine)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            state: dict[str, Any] = client.get("/v1/engine/state").json()
            prompt = {
                "model": state["model"],
                "prompt": "Once upon a time",
                "max_tokens": 16,
                "temperature": 0,
            }
            client.post("/v1/completions", json=prompt).raise_for_status()
        memory, laps = state["memory_bytes"], state["startup_seconds"]
        status = _status(engine)
    return Start(
        total,
        laps["model"],
        laps["imports"],
        processor,
        memory["weights_predicted"] / 2**20,
        memory["weights"] / 2**20,
        status["VmRSS"] / 2**10,
        status["VmHWM"] / 2**10,
    )


def _engine_process(server: int) -> int:
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return next(
        int(pid) for pid in children if b"engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def _status(pid: int) -> dict[str, int]:
    """KiB by name."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(
        "| file | start | all s | imports s | model s | processor s | predicted | weights | process | peak | ",
        end="",
    )
    print("beside the file |\n|---|---|---|---|---|---|---|---|---|---|---|")
    for file in options.files:
        found: dict[str, list[Start]] = {"first": [], "second": []}
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as cache:
                for name in found:
                    found[name].append(start(file, Path(cache)))
        size = file.stat().st_size / 2**20
        for name, starts in found.items():
            seconds = [
                f"{statistics.median(getattr(one, field) for one in starts):.1f}"
                for field in ("total", "imports", "model", "processor")
            ]
            memory = {
                field: statistics.median(getattr(one, field) for one in starts)
                for field in ("predicted", "weights", "process", "peak")
            }
            rest = [f"{memory[field]:,.0f}" for field in memory]
            beside = f"{memory['process'] - 1.2 * size:,.0f}"
            print(
                "|",
                " | ".join([f"{file.stem} ({size:,.0f})", name, *seconds, *rest, beside]),
                "|",
                flush=True,
            )


if __name__ == "__main__":
    main()
