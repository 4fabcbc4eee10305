"""How long does a request wait for a model that is not loaded, and what does the model take meanwhile?

    python -m benchmarks.model_starts MODEL [MODEL …] [--repeats 3] [--memory 8GiB]

Each model is alone in an engine of several (``--min 0``), asked once so that its weights are converted, then put into
each state and asked for one token:

unloaded   no process; the files are in the page cache, as after an earlier load
asleep 2   everything was dropped, torch stays imported
asleep 1   weights are in the page cache, the process has the rest
loaded     nothing to wait for

seconds    until the answer of one token, median of ``--repeats``, with the shortest and the longest
MiB        of all processes of the model in that state
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from statistics import median

import httpx

from benchmarks.processes import ended_in_order

STATES = ("unloaded", "asleep 2", "asleep 1", "loaded")


class Engine:
    def __init__(self, model: str, level: int, memory: str) -> None:
        flags = [
            "--min=0",
            f"--sleep-level={level}",
            f"--memory={memory}",
            "--sleep-after=off",
            "--max-load-wait=10m",
        ]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "engine",
                "serve",
                "--model",
                model,
                "--port=0",
                "--log-level=error",
                *flags,
            ],
            stdout=subprocess.PIPE,
        )
        if self._process.stdout is None:
            raise RuntimeError("the engine has no standard output")
        said = self._process.stdout.readline().decode().split()
        if not said:
            raise SystemExit(f"the engine did not start with {model}")
        self._http = httpx.Client(base_url=said[-1], timeout=900, trust_env=False)
        self._name = self._http.get("/v1/models").json()["data"][0]["id"]

    def close(self) -> None:
        self._http.close()
        self._process.terminate()
        self._process.wait()

    def order(self, what: str) -> None:
        self._http.post(f"/models/{what}", json={"model": self._name}).raise_for_status()

    def ask(self) -> float:
        """Seconds for one token."""
        began = time.perf_counter()
        body = {"model": self._name, "prompt": "The capital of France is", "max_tokens": 1}
        self._http.post("/v1/completions", json=body).raise_for_status()
        return time.perf_counter() - began

    def mib(self) -> float:
        time.sleep(2.5)  # measured every second
        return float(self._http.get(f"/v1/models/{self._name}").json()["status"]["memory_bytes"]) / 2**20


def measure(model: str, repeats: int, memory: str) -> dict[str, tuple[list[float], float]]:
    """Seconds of each repeat and MiB, by state."""
    found: dict[str, tuple[list[float], float]] = {}
    for level in (1, 2):
        with ended_in_order(), closing(Engine(model, level, memory)) as engine:
            engine.ask()
            ways = {
                f"asleep {level}": "sleep",
                **({"unloaded": "unload", "loaded": "load"} if level == 1 else {}),
            }
            for state, order in ways.items():
                seconds, mib = [], 0.0
                for _ in range(repeats):
                    engine.order(order)
                    mib = mib or engine.mib()
                    seconds.append(engine.ask())
                found[state] = seconds, mib
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", default="8GiB")
    given = parser.parse_args()
    print("| model | state | seconds | from | to | MiB |\n|---|---|--:|--:|--:|--:|")
    for model in given.models:
        found = measure(model, given.repeats, given.memory)
        for state in STATES:
            seconds, mib = found[state]
            row = (
                Path(model).stem,
                state,
                f"{median(seconds):.2f}",
                f"{min(seconds):.2f}",
                f"{max(seconds):.2f}",
            )
            print(f"| {' | '.join(row)} | {mib:,.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
