"""A golden set before an engine takes over, in a process of its own: serving loads nothing of the lab."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.backends.launcher import Launch
from gateway.children.child import DIE_WITH_PARENT

_MODULE = "gateway.lab.evaluate.golden"


class GoldenSets:
    """``folder`` is the policy's, in which the sets are; ``env`` that of the process."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._env = env

    async def objection(self, launch: Launch, url: str) -> str | None:
        """Why the engine at ``url`` should not take over; None where it may, or nothing is asked of it."""
        golden = launch.golden
        if golden is None:
            return None
        try:
            process = await asyncio.create_subprocess_exec(
                *DIE_WITH_PARENT,
                str(os.getpid()),
                *(sys.executable, "-m", _MODULE, str(self._folder / golden.set), url),
                *("--at-least", str(golden.at_least)),
                env=dict(self._env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:  # no memory, no file descriptors
            return f"the check of '{golden.set}' cannot be started: {error.strerror or error}"
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            if process.returncode is None:
                process.kill()
            await process.wait()
            raise
        if process.returncode == 0:
            return None
        lines = output.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"the check of '{golden.set}' ended with code {process.returncode}"
