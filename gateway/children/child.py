"""A child process that is started again whenever it dies, with growing pauses while it keeps dying."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gateway.backoff import Backoff

log = logging.getLogger(__name__)

DIE_WITH_PARENT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("die_with_parent.py")))
"""A command prefix: it is followed by the id of the process to die with, and the command to run."""
BACKOFF = Backoff(0.25, most=10.0)
"""Before a new start, by the deaths since it last lived for a while."""
_LONGEST_LINE = 64 * 1024
_POLL = 1.0
"""Seconds between two checks of an obstacle."""

OnLine = Callable[[str, str], None]
"""Takes the child's name and one line of its output."""


class Child:
    """Runs ``argv`` in a process group of its own, so that a terminal's Ctrl-C does not reach it, and for as long as
    this process lives and no longer (see ``gateway.children.die_with_parent``)."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        on_line: OnLine = lambda name, line: None,
        backoff: Backoff = BACKOFF,
        calm: float = 30.0,
        obstacle: Callable[[], str | None] = lambda: None,
    ) -> None:
        """``backoff`` begins anew when it has lived for ``calm`` seconds.

        ``obstacle`` returns why it cannot be started now, or None; an obstacle is logged once and waited for.
        """
        self.name = name
        self.pid: int | None = None
        """Its process id; None while it does not run."""
        self.deaths = 0
        """How often it ended by itself."""
        self.last_lines: deque[str] = deque(maxlen=5)
        self._argv = tuple(argv)
        self._env = env
        self._pass_fds = tuple(pass_fds)
        self._on_line = on_line
        self._backoff = backoff
        self._calm = calm
        self._obstacle = obstacle
        self._stopping = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running(), name=f"child {self.name}")

    async def stop(self, grace: float) -> None:
        """SIGTERM, and SIGKILL to what is left of its group after ``grace`` seconds. Returns when it is gone."""
        self._stopping.set()
        if self._task is None:
            return
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait([self._task], timeout=grace)
        if not done:
            log.warning("%s did not stop within %g s and is killed", self.name, grace)
            self.kill()
        await self._task

    def become(self, argv: Sequence[str], obstacle: Callable[[], str | None]) -> None:
        """It is started again, if it dies, by this command, and where this finds no obstacle."""
        self._argv = tuple(argv)
        self._obstacle = obstacle

    def restart(self) -> None:
        """SIGKILL to its whole group; it is then started again, as after any death."""
        if self.pid is not None:
            _kill_group(self.pid)

    def kill(self) -> None:
        """SIGKILL to its whole group, for good."""
        self._stopping.set()
        if self.pid is not None:
            _kill_group(self.pid)

    async def _keep_running(self) -> None:
        deaths = 0
        while await self._may_start():
            started = time.monotonic()
            self.last_lines.clear()
            code = await self._run_once()
            lived = time.monotonic() - started
            if self._stopping.is_set():
                return
            self.deaths += 1
            deaths = 1 if lived >= self._calm else deaths + 1
            pause = self._backoff.after(deaths)
            last_output = f"; its last output: {self.last_lines[-1]}" if self.last_lines else ""
            log.error(
                "%s %s after %.1f s and is started again in %g s%s",
                self.name,
                _ended(code),
                lived,
                pause,
                last_output,
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _may_start(self) -> bool:
        """Wait until there is no obstacle; False: it is to stop."""
        logged = None
        while not self._stopping.is_set() and (why := self._obstacle()) is not None:
            if why != logged:
                log.error("%s waits: %s", self.name, why)
                logged = why
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _POLL)
        return not self._stopping.is_set()

    async def _run_once(self) -> int:
        loop = asyncio.get_running_loop()
        # A pipe of our own: asyncio's would make the end of the child wait for all who inherited its output.
        reading, writing = os.pipe()
        lines = _Lines(self._received_line)
        transport, _ = await loop.connect_read_pipe(lambda: lines, os.fdopen(reading, "rb", 0))
        try:
            self._process = await asyncio.create_subprocess_exec(
                *DIE_WITH_PARENT,
                str(os.getpid()),
                *self._argv,
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                pass_fds=self._pass_fds,
                process_group=0,
            )
        except OSError as error:
            self._received_line(f"cannot be started: {error.strerror or error}")
            transport.close()
            return 127
        finally:
            os.close(writing)
        self.pid = self._process.pid
        if self._stopping.is_set():  # asked to stop while it was being started
            self._signal(signal.SIGTERM)
        try:
            return await self._process.wait()
        finally:
            group, self.pid = self.pid, None
            _kill_group(group)  # with everything it started itself
            with suppress(TimeoutError):
                await asyncio.wait_for(lines.finished.wait(), 1.0)
            _reap_group(group)
            transport.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.pid is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _received_line(self, line: str) -> None:
        self.last_lines.append(line)
        self._on_line(self.name, line)


class _Lines(asyncio.Protocol):
    """Splits a pipe's data into lines; a progress bar's carriage return ends one, too."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.finished = asyncio.Event()
        self._on_line = on_line
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._emit(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._emit(self._rest)
        self._rest = b""
        self.finished.set()

    def _emit(self, line: bytes) -> None:
        if text := line.decode("utf-8", "replace").rstrip():
            self._on_line(text)


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _reap_group(leader: int) -> None:
    """In a container this process may be the one that inherits orphans."""
    with suppress(ChildProcessError):
        while os.waitpid(-leader, os.WNOHANG) != (0, 0):
            pass


def _ended(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
