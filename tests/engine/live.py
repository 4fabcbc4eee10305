"""The real engine as a real server: two processes and a socket."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx


class EngineServer:
    """``python -m engine serve`` on a free port; leaving the context kills it if it is still there."""

    def __init__(self, model: Path | str, *options: str, log: Path) -> None:
        self._log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "engine", "serve", "--model", str(model), "--port", "0", *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        found = re.fullmatch(r"engine ready on (http://127\.0\.0\.1:(\d+))\n", line)
        if found is None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            raise RuntimeError(f"the engine did not start: {line!r}\n{self.log}")
        self.url, self.port = found[1], int(found[2])
        self.http = httpx.Client(base_url=self.url, timeout=300, trust_env=False)

    def __enter__(self) -> EngineServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def core_pid(self) -> int:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        # The chat template's processes are children, too.
        (loop,) = (
            child for child in children if "engine.process" in Path(f"/proc/{child}/cmdline").read_text()
        )
        return int(loop)

    def state(self) -> dict[str, Any]:
        return self.http.get("/v1/engine/state").json()

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


def eventually(condition: Callable[[], Any], *, within: float = 300.0) -> None:
    """Waits until ``condition`` is true."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {within} s")
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
