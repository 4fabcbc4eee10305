"""The engine process before it knows what to load: it imports torch while the model's files are read here."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

# The engine process has large, short-lived tensors. By default malloc maps and unmaps memory for each of them; the
# page faults cost a tenth of its speed. 32 MiB is the most that glibc takes everywhere.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}


class BegunProcess:
    """``socket`` is this process's end: the other one waits for ``engine.messages.Start``, and leaves at its end of
    file."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            # The package need not be installed, nor importable from the working directory.
            path = os.pathsep.join(entry for entry in sys.path if entry)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_MALLOC, "PYTHONPATH": path},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> None:
        """Until it has ended."""
        await asyncio.get_running_loop().run_in_executor(None, self._process.wait)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """By force, if it is still there."""
        self.socket.close()
        self._process.kill()
        self._process.wait()
