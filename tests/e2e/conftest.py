"""The whole of Tollgate as an operator runs it: ``tollgate serve`` with the bundled engine, over real sockets."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.ports import free_port

METRICS_TOKEN = "metrics-token"
OPERATOR = {"authorization": f"Bearer {METRICS_TOKEN}"}
"""Opens the operator's pages."""

POLICY = """
version: 1
backends:
  bundled: {{kind: engine, launch: true, base_url: "http://127.0.0.1:{engine_port}", model: "{model}"}}
  scripted: {{kind: fake, script: [{{reply: "Hello from a script."}}]}}
models:
  tollgate-demo: {{targets: [{{backend: bundled, model: "{model}"}}]}}
  scripted: {{targets: [{{backend: scripted, model: any}}]}}
"""


def children(parent: int, *words: str) -> list[int]:
    """The processes that ``parent`` runs with all of ``words`` in their command, the guards beside them left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_text().split("\0")
            ppid = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if (
            ppid == parent
            and set(words) <= set(command)
            and not any(w.endswith("die_with_parent.py") for w in command)
        ):
            found.append(int(entry.name))
    return found


def stop(process: subprocess.Popen[str]) -> None:
    """In good order, or else by force."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass
class Stack:
    """A running gateway and engine, and how to reach them."""

    process: subprocess.Popen[str]
    url: str
    engine_url: str
    key: str
    policies: Path
    lines: list[str] = field(default_factory=list)

    def engine_metric(self, name: str) -> float:
        """The value of a metric without labels on the engine's own page."""
        text = httpx.get(f"{self.engine_url}/metrics").text
        found = re.search(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", text, re.MULTILINE)
        if found is None:
            raise AssertionError(f"no {name} on the engine's /metrics:\n{text}")
        return float(found[1])

    def gateway_metric(self, name: str) -> float:
        """The sum of a metric's values over all its labels on the gateway's page."""
        text = httpx.get(f"{self.url}/metrics", headers=OPERATOR, timeout=300).text
        return sum(
            float(n) for n in re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", text, re.MULTILINE)
        )

    def is_ready(self) -> bool:
        """Whether the engine has proven to the gateway that it can serve, within the last second."""
        try:
            told = httpx.get(f"{self.url}/readyz", headers=OPERATOR, timeout=300).json()
            # While no worker serves there is an error alone.
            return told.get("backends", {}).get("bundled") == "ready"
        except httpx.TransportError:
            return False

    def wait_ready(self, seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if self.is_ready():
                return
            time.sleep(0.1)
        raise AssertionError("not ready in time:\n" + "".join(self.lines[-40:]))


def serve(folder: Path, *, model: str = "demo", beside: str = "") -> Iterator[Stack]:
    """``beside``: more of the policy."""
    port, engine_port = free_port(), free_port()
    policies = folder / "policies"
    policies.mkdir()
    (policies / "gateway.yaml").write_text(POLICY.format(engine_port=engine_port, model=model))
    if beside:
        (policies / "beside.yaml").write_text(beside)
    key = "tg-end-to-end"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gateway",
            "serve",
            "--policies",
            str(policies),
            "--port",
            str(port),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "TOLLGATE_DEV_KEY": key,
            "TOLLGATE_STATE_DIR": str(folder / "state"),
            "TOLLGATE_METRICS_TOKEN": METRICS_TOKEN,
            "TOLLGATE_SHUTDOWN_DELAY": "0",
        },
        start_new_session=True,
    )
    stack = Stack(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{engine_port}", key, policies)
    reader = threading.Thread(target=lambda: stack.lines.extend(process.stdout or ()), daemon=True)
    reader.start()
    try:
        stack.wait_ready()
        yield stack
    finally:
        stop(process)
        reader.join(300)
        if process.stdout:
            process.stdout.close()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Shared by the tests that leave it as they found it."""
    yield from serve(tmp_path_factory.mktemp("stack"))


@pytest.fixture
def own_stack(tmp_path: Path) -> Iterator[Stack]:
    """For tests that break it."""
    yield from serve(tmp_path)
