"""The end of an engine process whose step hangs, and of none that a busy machine lets wait."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from engine import processes
from engine.client import EngineClient
from engine.pooling.client import PoolingClient

log = logging.getLogger("engine.server")


class StuckClock:
    """Seconds for which the engine process could have gone on and did not.

    Wall time counts, a sleep in a GPU's driver included, but not the time in which a thread of it waited for a
    processor, nor the time that this process took longer than it meant to sleep: it had no processor either.
    """

    def __init__(self, pause: float) -> None:
        """``pause``: the seconds between two looks that were meant."""
        self._pause = pause
        self._waited: Mapping[int, float] | None = None
        self.seconds = 0.0

    def reset(self) -> None:
        """It has done a step, or has nothing to do."""
        self._waited = None
        self.seconds = 0.0

    def add(self, passed: float, waited: Mapping[int, float]) -> None:
        """``passed``: seconds since the last look; ``waited``: as in ``processes.waited``."""
        before = self._waited
        self._waited = waited
        if before is None:  # what it waited before is not known
            return
        # Threads wait for each other at the end of each operation: the one that waits longest is the one that counts.
        longest = max((now - before.get(thread, 0.0) for thread, now in waited.items()), default=0.0)
        self.seconds = max(self.seconds + min(passed, self._pause) - longest, 0.0)


async def end_when_stuck(client: EngineClient | PoolingClient, timeout: float) -> None:
    """Kills the engine process once it has done no step for ``timeout`` seconds, in which it could run and requests
    were open. 0: never."""
    pause = min(1.0, timeout / 4)
    clock, last, looked = StuckClock(pause), client.last, time.monotonic()
    while timeout:
        await asyncio.sleep(pause)
        passed, looked = time.monotonic() - looked, time.monotonic()
        if client.last is not last or not client.computing:
            last = client.last
            clock.reset()
            continue
        clock.add(passed, await asyncio.to_thread(processes.waited, client.pid))
        if clock.seconds >= timeout:
            log.error("no step in %.0f s: giving up the engine process (--step-timeout)", clock.seconds)
            client.kill()
            return
