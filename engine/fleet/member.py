"""The processes of one model: ``python -m engine serve`` on a Unix socket, started, watched and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from engine import processes
from engine.errors import StartupError, Unavailable
from engine.fleet import memory
from engine.fleet.exchange import MemberGone, ask_json, is_farewell

_END = 0.05
"""Seconds between looks at whether killed processes have gone."""
_DRAIN = 30.0
"""Seconds for a process to leave after SIGTERM; nothing is in flight then."""


class Member:
    """Its processes are a group of their own: a killed one takes those that it started with it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, socket: Path) -> None:
        self.name = name
        self.socket = socket
        self._process = process
        self._log = asyncio.create_task(self._relay_log())
        self._last_line = ""
        self.ended = asyncio.Event()
        """All its processes are gone."""
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, name: str, argv: Sequence[str], folder: Path, number: int) -> Member:
        """``argv``: flags behind ``python -m engine serve``. ``number`` tells its socket from earlier ones'."""
        socket = folder / f"{number}.sock"
        path = os.pathsep.join(entry for entry in sys.path if entry)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "engine", "serve", *argv),
            *(f"--uds={socket}", "--leave-with-stdin"),
            # It is open as long as this process lives: its end is their order to leave.
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        return cls(name, process, socket)

    async def ready(self) -> None:
        """Waits until it serves. Raises ``StartupError`` with what it said last if it does not."""
        stdout = self._process.stdout
        if stdout is None:
            raise ValueError("it has no standard output")
        line = await stdout.readline()
        if not line.startswith(b"engine ready"):
            await self.kill()
            code = self._process.returncode
            how = (
                f"was ended by signal {-code}"
                if code is not None and code < 0
                else f"exited with status {code}"
            )
            said = self._last_line.partition("error: ")[2] or f"Its process {how} while it loaded."
            raise StartupError(said)

    def watch(self, on_death: Callable[[Member], None]) -> None:
        """``on_death`` is called when its processes have ended without ``stop`` or ``kill``, all of them."""

        async def watch() -> None:
            await self._process.wait()
            await self._end_group()
            self.socket.unlink(missing_ok=True)
            self.ended.set()
            on_death(self)

        self._watch = asyncio.create_task(watch())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        return self._process.returncode

    async def taken(self) -> int:
        """Bytes of all its processes."""
        return await asyncio.to_thread(lambda: memory.taken(processes.tree(self.pid)))

    async def state(self) -> dict[str, Any]:
        """As its ``/v1/engine/state`` has it. Raises ``MemberGone``."""
        _, body = await ask_json(self.socket, b"GET /v1/engine/state")
        found: dict[str, Any] = orjson.loads(body)
        return found

    async def prove(self) -> None:
        """Returns when its model has computed something. Raises ``Unavailable`` where it does not in time,
        ``MemberGone`` where it has died."""
        await self._demand(b"GET /health")

    async def sleep(self, level: int) -> None:
        """Raises ``Unavailable`` where it is not idle, ``MemberGone`` where it has died."""
        await self._demand(b"POST /sleep?level=%d" % level)

    async def wake(self) -> None:
        """Raises ``Unavailable`` where it cannot, ``MemberGone`` where it has died."""
        await self._demand(b"POST /wake_up")

    async def _demand(self, line: bytes) -> None:
        status, body = await ask_json(self.socket, line)
        if is_farewell(status, body):
            raise MemberGone("its engine process has ended", certain=True)
        if status != 200:
            try:
                message = orjson.loads(body)["error"]["message"]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                message = f"status {status}"
            raise Unavailable(message)

    async def stop(self) -> None:
        """Lets it leave by itself, and makes it if it does not."""
        self._unwatch()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _DRAIN)
        await self.kill()

    def end(self) -> None:
        """Kills all its processes. Who watches is told when they have ended, as of any other death."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """Ends all its processes, and waits until they are gone."""
        self._unwatch()
        await self._end_group()
        await self._process.wait()
        await self._log
        self.socket.unlink(missing_ok=True)
        self.ended.set()

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _end_group(self) -> None:
        """Processes that it started may still compute, or load a model, after it was killed."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
            await self._process.wait()
            # Nothing tells when processes have ended that are not this one's children.
            while await asyncio.to_thread(processes.group_lives, self.pid):  # noqa: ASYNC110
                await asyncio.sleep(_END)

    async def _relay_log(self) -> None:
        """Its log becomes this process's, each line with the model's name in front (JSON lines stay as they are)."""
        stderr = self._process.stderr
        if stderr is None:
            return
        as_json = os.environ.get("TOLLGATE_LOG_FORMAT", "").lower() == "json"
        prefix = "" if as_json else f"[{self.name}] "
        while line := await _line(stderr):
            text = line.decode("utf-8", "replace").rstrip()
            self._last_line = text or self._last_line
            sys.stderr.write(f"{prefix}{text}\n")
            sys.stderr.flush()


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(error.consumed)
