"""Notices that a worker's event loop stands still, has its stack logged, and has it replaced.

A worker writes its process id into a pipe as long as its loop goes round. What a clock says of the time between two
such beats proves nothing: a machine may have slept, or have had no time for the worker. So it counts what the worker
spent itself. A loop that is held up by a computation has used ``patience`` seconds of processor time since its last
beat; one that waits for something else than events has lain asleep at all of many looks in a row.
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
"""The variable that tells a worker where to write."""
TELL = signal.SIGUSR2
"""Has a worker write down its stack, by ``faulthandler``, which works whatever holds the interpreter up."""
INTERVAL = 1.0
"""Seconds between two beats, and between two looks."""
_ASLEEP = 6
"""Times as many looks as ``patience`` has seconds at which a loop that does nothing at all lay asleep."""
_WRITING = 1.0
"""Seconds for the stack to be written."""


async def beat(fd: int) -> None:
    """In the worker: tell that the loop goes round. Runs until it is cancelled."""
    os.set_blocking(fd, False)
    me = b"%d\n" % os.getpid()
    while True:
        with suppress(BlockingIOError):
            os.write(fd, me)
        await asyncio.sleep(INTERVAL)


class Watchdog:
    """Watches one worker, through all its lives. It begins when the worker's loop first goes round."""

    def __init__(self, worker: Child, pulse: int, *, patience: float, interval: float = INTERVAL) -> None:
        """``pulse`` is the end of the pipe to read from; ``patience`` is in seconds of processor time."""
        self._worker = worker
        self._pulse = pulse
        self._patience = patience
        self._interval = interval
        self._watched: int | None = None
        """The process that was heard of."""
        self._spent = 0.0
        """Processor time of the worker's when it was last heard of."""
        self._looks = 0
        """How often in a row it lay asleep since."""
        os.set_blocking(pulse, False)

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            why = self._look()
            if why is not None:
                await self._replace(why)

    def _look(self) -> str | None:
        """What proves that the loop stands still; None: nothing does."""
        pid = self._worker.pid
        if pid is None:
            return None
        now = _Activity.of(pid)
        if pid in self._heard():
            self._watched, self._spent, self._looks = pid, now.spent, 0
            return None
        if pid != self._watched:
            return None
        self._looks = self._looks + 1 if now.asleep else 0
        spent = now.spent - self._spent
        if spent >= self._patience:
            return f"it has computed for {spent:.0f} s without a pause"
        if self._looks * self._interval >= self._patience * _ASLEEP:
            return (
                f"it has waited for {self._looks * self._interval:.0f} s for something else than its events"
            )
        return None

    def _heard(self) -> set[int]:
        heard = b""
        with suppress(BlockingIOError):
            while some := os.read(self._pulse, 65536):
                heard += some
        return {int(line) for line in heard.split()}

    async def _replace(self, why: str) -> None:
        pid, self._watched = self._worker.pid, None
        if pid is None:
            return
        log.error("the event loop of %s stands still: %s. It is replaced; its stack:", self._worker.name, why)
        with suppress(ProcessLookupError):
            os.kill(pid, TELL)
        await asyncio.sleep(_WRITING)
        if self._worker.pid == pid:
            self._worker.replace()


class _Activity(NamedTuple):
    spent: float
    """Seconds of processor time, of all threads."""
    asleep: bool
    """Its first thread waits for something, and neither for a processor, a disk nor a debugger."""

    @classmethod
    def of(cls, pid: int) -> _Activity:
        try:
            # proc_pid_stat(5); the name in parentheses may hold anything.
            fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended, or there is no such file on this system
            return cls(0.0, not Path("/proc/self/stat").exists())
        return cls((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0] == "S")
