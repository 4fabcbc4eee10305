"""The client is not what it measures."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from gateway.lab.bench.apis import APIS
from gateway.lab.bench.conversations import Drawn
from gateway.lab.bench.lengths import Lengths
from gateway.lab.bench.load import Extent, Load
from gateway.lab.bench.server import Server
from gateway.lab.bench.session import Plan, run_session
from gateway.lab.bench.slo import Slo
from gateway.lab.progress import Progress
from tests.import_graph import ROOT
from tests.ports import free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server in a process of its own, whose model ``trickled`` sends 50 pieces, one every 20 ms."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.load", "serve", str(port)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            for _ in range(600):
                try:
                    httpx.post(f"http://127.0.0.1:{port}/", content=b"{}", timeout=5)
                    break
                except httpx.ConnectError:
                    time.sleep(0.1)
            yield port
        finally:
            process.kill()


def test_it_reads_20_000_chunks_a_processor_second(port: int) -> None:
    """Each chunk in a packet of its own, of 400 streams; measured 80,000 to 100,000 on a busy machine."""
    api = APIS["chat"]
    server = Server("s", f"http://127.0.0.1:{port}/v1/{api.path}", api, "trickled")
    workload = Drawn(Lengths(20, 20), Lengths(50, 50))
    plan = Plan([server], [Load(400)], Extent(1200), workload, Slo({}), per_word=1.0)
    [result] = run_session(plan, Progress(io.StringIO())).results
    [run] = result.runs
    chunks = sum(sample.chunks for sample in result.counted)
    assert chunks == 1200 * 50 and all(sample.ok for sample in result.counted)
    assert chunks / run.cpu > 20_000
