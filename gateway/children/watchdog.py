"""Detects that a worker's event loop is blocked, logs its stack, and restarts it.

A worker writes its process id into a pipe as long as its loop runs. Wall time between two such heartbeats proves
nothing: the machine may have slept, or have been busy with something else. So processor time counts. A loop that is
blocked by a computation has used ``patience`` seconds of it since its last heartbeat; one that is blocked by anything
else is found sleeping in all of many checks in a row.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gateway.children.child import Child

log = logging.getLogger(__name__)

PULSE_FD = "TOLLGATE_PULSE_FD"
"""The variable that holds the file descriptor to write to."""
DUMP_STACK = signal.SIGUSR2
"""Makes a worker log its stack, by ``faulthandler``, which works whatever blocks the interpreter."""
INTERVAL = 1.0
"""Seconds between two heartbeats, and between two checks."""
_SLEEPING = 6
"""Times ``patience``: seconds for which a loop must be found sleeping."""
_WRITING = 1.0
"""Seconds for the stack to be written."""


async def heartbeat(fd: int) -> None:
    """In the worker: report that the loop runs. Runs until it is cancelled."""
    os.set_blocking(fd, False)
    me = b"%d\n" % os.getpid()
    while True:
        with suppress(BlockingIOError):
            os.write(fd, me)
        await asyncio.sleep(INTERVAL)


class Watchdog:
    """Watches one worker across its restarts, each time from its first heartbeat on."""

    def __init__(self, worker: Child, pulse: int, *, patience: float, interval: float = INTERVAL) -> None:
        """``pulse`` is the end of the pipe to read from; ``patience`` is in seconds of processor time."""
        self._worker = worker
        self._pulse = pulse
        self._patience = patience
        self._interval = interval
        self._watched: int | None = None
        """The process that sent the last heartbeat."""
        self._spent = 0.0
        """The worker's processor time at its last heartbeat."""
        self._sleeping = 0
        """How often in a row it was found sleeping since."""
        os.set_blocking(pulse, False)

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            why = self._check()
            if why is not None:
                await self._restart(why)

    def _check(self) -> str | None:
        """Why the loop must be blocked; None: nothing shows that it is."""
        pid = self._worker.pid
        if pid is None:
            return None
        now = _Activity.of(pid)
        if pid in self._heartbeats():
            self._watched, self._spent, self._sleeping = pid, now.spent, 0
            return None
        if pid != self._watched:
            return None
        self._sleeping = self._sleeping + 1 if now.sleeping else 0
        spent = now.spent - self._spent
        if spent >= self._patience:
            return f"it has computed for {spent:.0f} s without a pause"
        if self._sleeping * self._interval >= self._patience * _SLEEPING:
            return f"it has waited for {self._sleeping * self._interval:.0f} s for something else than its events"
        return None

    def _heartbeats(self) -> set[int]:
        received = b""
        with suppress(BlockingIOError):
            while some := os.read(self._pulse, 65536):
                received += some
        return {int(line) for line in received.split()}

    async def _restart(self, why: str) -> None:
        pid, self._watched = self._worker.pid, None
        if pid is None:
            return
        log.error("the event loop of %s is blocked: %s. It is restarted; its stack:", self._worker.name, why)
        with suppress(ProcessLookupError):
            os.kill(pid, DUMP_STACK)
        await asyncio.sleep(_WRITING)
        if self._worker.pid == pid:
            self._worker.restart()


class _Activity(NamedTuple):
    spent: float
    """Seconds of processor time, of all threads."""
    sleeping: bool
    """Its first thread sleeps: it waits neither for a processor, a disk nor a debugger."""

    @classmethod
    def of(cls, pid: int) -> _Activity:
        try:
            # proc_pid_stat(5); the name in parentheses may hold anything.
            fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended, or there is no such file on this system
            return cls(0.0, not Path("/proc/self/stat").exists())
        return cls((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0] == "S")
