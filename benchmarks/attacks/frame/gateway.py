"""A gateway as ``tollgate serve`` runs it by default: a supervisor and its workers, on a free port."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

ROOT = Path(__file__).parents[3]
KEEP = 5_000
"""Lines of its log."""


class Gateway:
    """Speaks for nobody: requests name their key."""

    def __init__(self, folder: Path, port: int, http: httpx.AsyncClient) -> None:
        self.folder = folder
        self.policies = folder / "policies"
        self.state = folder / "state"
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.http = http
        """A client of this gateway, without a key and without a limit of time."""
        self.lines: list[str] = []
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The supervisor's."""
        if self._process is None:
            raise RuntimeError("the gateway is not running")
        return self._process.pid

    @property
    def workers(self) -> list[int]:
        """Process ids of the processes that serve."""
        return workers_of(self.pid)

    def write(self, policy: dict[str, Any], name: str = "gateway.yaml") -> None:
        """Write or replace a file of the policy folder, as an editor would."""
        fresh = self.policies / f".{name}.new"
        fresh.write_text(yaml.safe_dump(policy, sort_keys=False))
        fresh.replace(self.policies / name)

    async def start(self, *arguments: str, wrapped: Sequence[str] = (), **env: str) -> None:
        """``wrapped`` is what its command is an argument of. Raises ``RuntimeError`` if it does not become ready."""
        command = [*wrapped, sys.executable, "-m", "gateway", "serve", "--policies", str(self.policies)]
        self._process = await asyncio.create_subprocess_exec(
            *(*command, "--port", str(self.port), *arguments),
            cwd=ROOT,
            env={
                **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
                "TOLLGATE_STATE_DIR": str(self.state),
                "TOLLGATE_SHUTDOWN_DELAY": "0",
                "TOLLGATE_DRAIN_TIMEOUT": "1",
                **env,
            },
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        self._reading = asyncio.create_task(self._read(self._process))
        deadline = time.monotonic() + 120
        while not await self._ready():
            if self._process.returncode is not None or time.monotonic() > deadline:
                raise RuntimeError("the gateway is not ready:\n" + "".join(self.lines[-40:]))
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """In good order, or else by force."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(15):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._reading is not None:
            await self._reading
        self._process = None

    async def post(
        self, key: str, body: Any, path: str = "/v1/chat/completions", **options: Any
    ) -> httpx.Response:
        """``options`` as ``httpx`` has them: ``headers``, ``timeout``."""
        headers = {"authorization": f"Bearer {key}", **options.pop("headers", {})}
        return await self.http.post(path, json=body, headers=headers, **options)

    async def chat(self, key: str, content: str = "Hi", model: str = "m", **more: Any) -> httpx.Response:
        """A chat of one message; ``more`` goes into the request's body."""
        messages = [{"role": "user", "content": content}]
        return await self.post(key, {"model": model, "messages": messages, **more})

    async def is_alive(self, seconds: float = 5.0) -> bool:
        """Whether ``/healthz`` answers within this time."""
        with suppress(httpx.TransportError):
            return (await self.http.get("/healthz", timeout=seconds)).status_code == 200
        return False

    async def _ready(self) -> bool:
        with suppress(httpx.TransportError):
            return (await self.http.get("/readyz", timeout=5)).status_code == 200
        return False

    async def _read(self, process: Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            self.lines.append(line.decode("utf-8", "replace"))
            del self.lines[:-KEEP]


def workers_of(supervisor: int) -> list[int]:
    commands = {pid: _command(pid).split(b"\0") for pid in descendants(supervisor)}
    # Each has a guard beside it, with the same words in its command (gateway/children/die_with_parent.py).
    return [
        pid
        for pid, words in commands.items()
        if b"gateway.process.worker" in words
        and not any(word.endswith(b"die_with_parent.py") for word in words)
    ]


def descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [one for child in map(int, children) for one in (child, *descendants(child))]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
