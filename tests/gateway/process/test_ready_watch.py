"""When ``tollgate serve`` says that it is ready."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.policy.loader import load_policy
from gateway.policy.reload import PolicyWatcher
from gateway.process.ready_watch import until_ready

pytestmark = pytest.mark.anyio
POLICY = """\
version: 1
backends: {own: {kind: fake, script: [{reply: hi}]}}
models: {one: {targets: [{backend: own, model: m}]}}
"""


async def ready_page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b'HTTP/1.1 200 OK\r\n\r\n{"status": "ready", "backends": {"own": "ready"}}')
    writer.close()


async def test_all_workers_are_waited_for(tmp_path: Path) -> None:
    """Else the death of the one that accepts leaves callers waiting for as long as another takes to start."""
    (tmp_path / "gateway.yaml").write_text(POLICY)
    watcher: Any = SimpleNamespace(current=load_policy(tmp_path, {}))
    absent, waits = [2, 1, 0], list[str]()
    async with await asyncio.start_server(ready_page, "127.0.0.1", 0) as server:
        (listener,) = server.sockets
        ready, loaded = await until_ready(
            cast(Any, listener), cast(PolicyWatcher, watcher), "", waits.append, lambda: absent.pop(0)
        )
    assert waits == ["2 more workers to start", "1 more worker to start"]
    assert ready == ["own"] and loaded is watcher.current
