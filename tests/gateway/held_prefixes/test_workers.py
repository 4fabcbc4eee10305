"""A real ``tollgate serve`` with two workers: both read what the first one is told, and outlive it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from benchmarks.attacks.frame.gateway import workers_of
from tests.gateway.held_prefixes.test_over_http import BLOCKS, LONG, chat, policy, salt_of, vllms, went_to
from tests.gateway.held_prefixes.vllm_server import SIZE, VllmServer
from tests.ports import free_port
from tests.serving import KEY

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
TIMES = 12
"""Each over a connection of its own: both workers answer some."""


@asynccontextmanager
async def two_workers(folder: Path, written: dict[str, Any]) -> AsyncIterator[tuple[str, int]]:
    """The gateway's address, and its supervisor."""
    policies = folder / "policies"
    policies.mkdir()
    (policies / "gateway.yaml").write_text(yaml.safe_dump(written))
    port = free_port()
    with (folder / "log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "serve", "--policies", str(policies)),
            *("--port", str(port), "--workers", "2"),
            env={**os.environ, "TOLLGATE_STATE_DIR": str(folder / "state"), "TOLLGATE_SHUTDOWN_DELAY": "0"},
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def choices(url: str, text: str) -> set[tuple[str, int]]:
    """Where requests went, and how many tokens each was thought to have there; empty where one failed."""
    found = set()
    for number in range(TIMES):
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, timeout=300) as http:
            try:
                answer = await http.post(f"{url}/v1/chat/completions", json=chat(f"{text} {number}"))
                receipt = await http.get(f"{url}/v1/requests/{answer.headers['x-request-id']}")
            except (httpx.TransportError, KeyError):
                return set()
        if "score" not in receipt.json().get("stages", {}):
            return set()
        score = receipt.json()["stages"]["score"]["m"]
        found.add((went_to(score), score["looked_at"][0]["held_tokens"]))
    return found


async def until_all_go_to(url: str, servers: Sequence[VllmServer], which: int) -> None:
    """Who was asked meanwhile, for want of knowledge, holds it, too: that is undone each time."""
    async with asyncio.timeout(300):
        while await choices(url, LONG) != {(f"vllm{which}", BLOCKS * SIZE)}:
            servers[1 - which].clear()
            await asyncio.sleep(0.1)


def first_worker(supervisor: int) -> int:
    return next(
        pid
        for pid in workers_of(supervisor)
        if b"TOLLGATE_WORKER=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )


async def test_all_workers_are_told_and_the_first_is_replaced(tmp_path: Path) -> None:
    async with vllms(2) as servers, two_workers(tmp_path, policy(*servers)) as (url, supervisor):
        async with asyncio.timeout(300):
            while not await choices(url, "warm"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        salt = salt_of(servers[0] if servers[0].asked else servers[1])
        for server in (0, 1):
            servers[1 - server].clear()
            servers[server].compute(chat(LONG), salt)
            await until_all_go_to(url, servers, server)
        before = first_worker(supervisor)
        os.kill(before, signal.SIGKILL)
        servers[1].clear()
        servers[0].compute(chat(LONG), salt)
        await until_all_go_to(url, servers, 0)
        assert first_worker(supervisor) != before
