"""Batches of ``tollgate serve`` outlive its processes: no line is lost, none is charged twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import yaml

from gateway.batches.batch import ENDED
from gateway.databases.database import Database
from gateway.databases.opening import open_database
from gateway.databases.sqlite import SqliteDatabase
from gateway.policy.schema import LedgerSettings
from tests.conftest import PostgresServer
from tests.fakes import FakeUpstream, completion, reply
from tests.ledgers import rows
from tests.ports import free_port
from tests.serving import KEY, chat, key

pytestmark = pytest.mark.anyio

LINES = 240
SLOTS = 8
CHAT = "/v1/chat/completions"
COST = 10 * 1_000_000 // 2
"""Nano-dollars: ten tokens of a dollar for a thousand, at half the price."""


class Serving:
    """``tollgate serve`` as a process, to be killed and started again with the same state."""

    def __init__(self, folder: Path, upstream: FakeUpstream, *, workers: int = 1, **more: Any) -> None:
        self.folder = folder
        self.workers = workers
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"authorization": f"Bearer {KEY}"},
            timeout=300,
            verify=False,
            trust_env=False,
        )
        policy = {
            "version": 1,
            "backends": {
                "up": {"kind": "openai", "base_url": upstream.base_url, "max_concurrency": 2 * SLOTS}
            },
            "models": {"up": {"targets": [{"backend": "up", "model": "u"}]}},
            "prices": {"u": {"input": 1000.0, "output": 1000.0}},
            "keys": [key(KEY, "one", tenant="acme", budget={"usd_per_day": 1000.0})],
            **more,
        }
        (folder / "policies").mkdir(parents=True, exist_ok=True)
        (folder / "policies" / "gateway.yaml").write_text(yaml.safe_dump(policy))

    async def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: ASYNC220  (it starts at once)
                [
                    *(sys.executable, "-m", "gateway", "serve", "--policies", str(self.folder / "policies")),
                    *("--port", str(self.port), "--workers", str(self.workers)),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "TOLLGATE_STATE_DIR": str(self.folder / "state"),
                    "TOLLGATE_SHUTDOWN_DELAY": "0",
                },
                start_new_session=True,
            )
        async with asyncio.timeout(300):
            while True:
                try:
                    if (await self.http.get("/readyz")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                assert self.process.poll() is None, (self.folder / "log").read_text()
                await asyncio.sleep(0.05)

    def kill(self, with_signal: int = signal.SIGKILL) -> None:
        """With all its workers."""
        if self.process is not None:
            os.killpg(self.process.pid, with_signal)
            self.process.wait(60)
            self.process = None

    async def __aenter__(self) -> Serving:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.kill()
        await self.http.aclose()

    async def create(self, lines: int = LINES) -> str:
        written = b"\n".join(
            orjson.dumps(
                {"custom_id": f"{i}", "method": "POST", "url": CHAT, "body": chat("up", f"line {i}")}
            )
            for i in range(lines)
        )
        form = {"file": ("input.jsonl", written)}
        file = (await self.http.post("/v1/files", files=form, data={"purpose": "batch"})).json()["id"]
        asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
        return str((await self.http.post("/v1/batches", json=asked)).json()["id"])

    async def batch(self, name: str) -> dict[str, Any]:
        return dict((await self.http.get(f"/v1/batches/{name}")).json())

    async def until(self, name: str, completed: int) -> dict[str, Any]:
        """So many lines have a result, or the batch has ended."""
        async with asyncio.timeout(300):
            while True:
                batch = await self.batch(name)
                if batch["status"] in ENDED or batch["request_counts"]["completed"] >= completed:
                    return batch
                await asyncio.sleep(0.02)

    async def output(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        text = (await self.http.get(f"/v1/files/{batch['output_file_id']}/content")).text
        return [orjson.loads(line) for line in text.splitlines()]


def upstream(seconds: float = 0.02) -> FakeUpstream:
    return FakeUpstream((seconds, *reply(completion())))


def asked(up: FakeUpstream) -> Counter[str]:
    """How often each line was computed."""
    return Counter(one.json()["messages"][0]["content"] for one in up.requests)


def charges(ledger: Database, batch: str) -> list[dict[str, Any]]:
    ids = f"req_{batch.removeprefix('batch_')[:19]}"
    return [row for row in rows(ledger) if row["request_id"].startswith(ids)]


async def test_it_is_killed_again_and_again_and_each_line_is_answered_and_charged_once(
    tmp_path: Path,
) -> None:
    async with upstream() as up, Serving(tmp_path, up) as gateway:
        name = await gateway.create()
        for completed in (40, 120):
            before = await gateway.until(name, completed)
            assert before["status"] == "in_progress"
            gateway.kill()
            await gateway.start()
        batch = await gateway.until(name, LINES)
        batch = await gateway.until(name, LINES + 1)
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        assert [one["custom_id"] for one in await gateway.output(batch)] == [f"{i}" for i in range(LINES)]
        times = asked(up)
        assert set(times) == {f"line {i}" for i in range(LINES)}
        # Only what was in flight, or had just ended, at either kill was computed again.
        assert sum(times.values()) - LINES <= 2 * 10 * SLOTS
        assert max(times.values()) <= 3
        gateway.kill(signal.SIGTERM)
        found = charges(SqliteDatabase(tmp_path / "state" / "ledger.sqlite"), name)
        assert len(found) == LINES
        assert {row["cost_nanodollars"] for row in found} == {COST}
        assert {row["status"] for row in found} == {200}


async def test_a_gateway_that_is_stopped_hands_its_batch_to_the_next_one_at_once(tmp_path: Path) -> None:
    async with upstream() as up, Serving(tmp_path, up) as gateway:
        name = await gateway.create()
        await gateway.until(name, 40)
        gateway.kill(signal.SIGTERM)
        kept = len(up.requests)
        await gateway.start()
        batch = await gateway.until(name, LINES + 1)
        assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        assert len(up.requests) - LINES <= 2 * SLOTS, kept


async def test_replicas_share_batches_on_postgres_and_one_is_killed(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    url = postgres_server.url(postgres_server.new_database())
    store = {"ledger": {"store": url}, "files": {"path": str(tmp_path / "files")}}
    async with (
        upstream() as up,
        Serving(tmp_path / "one", up, **store) as one,
        Serving(tmp_path / "two", up, **store) as two,
    ):
        names = [await one.create() for _ in range(4)]
        for name in names:
            await two.until(name, 20)
        one.kill()
        for name in names:
            batch = await two.until(name, LINES + 1)
            assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
            assert len(await two.output(batch)) == LINES
        two.kill(signal.SIGTERM)
        ledger = open_database(LedgerSettings(store=url), tmp_path)
        for name in names:
            found = charges(ledger, name)
            assert len(found) == LINES
            assert {row["cost_nanodollars"] for row in found} == {COST}
