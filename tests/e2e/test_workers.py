"""Several workers behind one port: whichever is asked, the answer is the whole gateway's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.conftest import RedisServer
from tests.e2e.conftest import METRICS_TOKEN, OPERATOR, children
from tests.ports import free_port

POLICY = """
version: 1
backends:
  scripted: {{kind: fake, script: [{{reply: "Hello from a script."}}]}}
models:
  scripted: {{targets: [{{backend: scripted, model: any}}]}}
store: {store}
"""
KEY = {"authorization": "Bearer tg-workers"}


@dataclass(frozen=True)
class Gateway:
    process: subprocess.Popen[bytes]
    url: str


@pytest.fixture
def gateway(tmp_path: Path, redis_server: RedisServer) -> Iterator[Gateway]:
    port = free_port()
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").write_text(POLICY.format(store=redis_server.url))
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gateway",
            "serve",
            "--policies",
            "policies",
            "--port",
            str(port),
            "--workers",
            "2",
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "TOLLGATE_DEV_KEY": "tg-workers",
            "TOLLGATE_SHUTDOWN_DELAY": "0",
            "TOLLGATE_METRICS_TOKEN": METRICS_TOKEN,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    running = Gateway(process, f"http://127.0.0.1:{port}")
    try:
        _wait_for(lambda: len(_workers(running)) == 2 and _ready(running))
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(300)


def ask(url: str) -> str:
    """One request on a connection of its own, so that any worker may get it; its id."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=KEY)
    answer.raise_for_status()
    return answer.headers["x-request-id"]


def requests_counted(url: str) -> int:
    page = httpx.get(f"{url}/metrics", headers=OPERATOR).text
    found = re.findall(
        r'^tollgate_requests_total\{[^}]*model="scripted"[^}]*\} ([0-9.e+]+)$', page, re.MULTILINE
    )
    return round(sum(map(float, found)))


def test_any_worker_tells_everyones_figures_and_receipts(gateway: Gateway) -> None:
    ids = [ask(gateway.url) for _ in range(24)]
    # A worker hands its figures on every 20 ms, and one may have read the other's before.
    _wait_for(lambda: {requests_counted(gateway.url) for _ in range(12)} == {24})
    for request_id in ids[-6:]:
        for _ in range(4):
            _wait_for(lambda at=request_id: _receipt(gateway.url, at).status_code == 200)
            assert _receipt(gateway.url, request_id).json()["stages"]["trace"]["status"] == 200


def test_a_killed_worker_is_replaced_and_leaves_nothing_in_flight(gateway: Gateway) -> None:
    for _ in range(8):
        ask(gateway.url)
    _wait_for(lambda: requests_counted(gateway.url) == 8)  # what a worker has not handed on dies with it
    victim = _workers(gateway)[0]
    os.kill(victim, signal.SIGKILL)
    _wait_for(lambda: len(_workers(gateway)) == 2 and victim not in _workers(gateway))
    _wait_for(lambda: _ready(gateway))
    ask(gateway.url)
    _wait_for(lambda: requests_counted(gateway.url) == 9)
    _wait_for(lambda: _in_flight(gateway.url) <= {0.0})


def _ready(gateway: Gateway) -> bool:
    return httpx.get(f"{gateway.url}/readyz").status_code == 200


def _receipt(url: str, request_id: str) -> httpx.Response:
    return httpx.get(f"{url}/v1/requests/{request_id}", headers=KEY)


def _in_flight(url: str) -> set[float]:
    page = httpx.get(f"{url}/metrics", headers=OPERATOR).text
    return set(map(float, re.findall(r"^tollgate_requests_in_flight\{[^}]*\} (\S+)$", page, re.MULTILINE)))


def _wait_for(condition, seconds: float = 300.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def _workers(gateway: Gateway) -> list[int]:
    return children(gateway.process.pid, "gateway.process.worker")
