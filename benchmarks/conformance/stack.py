"""What the suites are pointed at: the scripted providers, and a gateway in front of them with the bundled engine."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.conformance.backends import DEMO_WEIGHTS, SCRIPTED, policy
from benchmarks.processes import ended_in_order

_METRICS_TOKEN = "metrics-token"
_START_S = 600
"""Weights are read and converted meanwhile."""
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Stack:
    """Addresses are without ``/v1``. The gateway's models have their providers' names."""

    gateway: str
    key: str
    engine: str
    providers: Mapping[str, str]
    """By the kind of backend."""
    pids: Mapping[str, int]
    has_weights: bool = False
    """Whether the bundled engine's model is one that a coding agent can work with."""

    def is_alive(self) -> bool:
        return all(_answers(url) for url in (f"{self.gateway}/healthz", f"{self.engine}/health"))


@contextmanager
def running(weights: Path | None = None) -> Iterator[Stack]:
    """Everything on free ports, ready. Raises ``RuntimeError`` with the log of what does not start.

    ``weights``: a model for the bundled engine in place of the demo model.
    """
    ports = dict(
        zip(("gateway", "engine", *(p.kind for p in SCRIPTED)), free_ports(2 + len(SCRIPTED)), strict=True)
    )
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    providers = {provider.kind: urls[provider.kind] for provider in SCRIPTED}
    key = f"tg-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tollgate-conformance-")))
        policies = folder / "policies"
        policies.mkdir()
        (policies / "gateway.yaml").write_text(
            yaml.safe_dump(
                policy(providers, urls["engine"], str(weights.resolve()) if weights else DEMO_WEIGHTS),
                sort_keys=False,
            )
        )
        pids = {}
        for provider in SCRIPTED:
            command = [sys.executable, "-m", provider.module, str(ports[provider.kind])]
            ready = f"{urls[provider.kind]}{provider.ready}"
            pids[provider.kind] = stack.enter_context(process(command, folder / provider.kind, ready))
        serve = ["-m", "gateway", "serve", "--policies", str(policies), "--port", str(ports["gateway"])]
        pids["gateway"] = stack.enter_context(
            process(
                [sys.executable, *serve],
                folder / "gateway",
                f"{urls['gateway']}/readyz",
                TOLLGATE_DEV_KEY=key,
                TOLLGATE_STATE_DIR=str(folder / "state"),
                TOLLGATE_METRICS_TOKEN=_METRICS_TOKEN,
            )
        )
        _await(lambda: _are_ready(urls["gateway"]), seconds=_START_S)
        yield Stack(urls["gateway"], key, urls["engine"], providers, pids, weights is not None)


@contextmanager
def process(command: list[str], log: Path, ready: str, **env: str) -> Iterator[int]:
    """A process, from when ``ready`` is answered; ended in good order, and its group by force if need be."""
    with ended_in_order(), log.open("w+") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + _START_S
            while not _answers(ready):
                if process.poll() is not None or time.monotonic() > deadline:
                    out.seek(0)
                    raise RuntimeError(f"{' '.join(command)} is not ready:\n{out.read()}")
                time.sleep(0.1)
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _are_ready(gateway: str) -> bool:
    """All the backends, and not only enough of them to serve."""
    asked = urllib.request.Request(f"{gateway}/readyz", headers={"authorization": f"Bearer {_METRICS_TOKEN}"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return set(json.load(answer)["backends"].values()) == {"ready"}


def _await(condition: Callable[[], bool], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("a backend is not ready; the gateway's /readyz says which")
        time.sleep(0.2)


def _answers(url: str) -> bool:
    """With success, or with a refusal: for want of a key, say."""
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [sock.getsockname()[1] for sock in held]
