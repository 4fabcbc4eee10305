"""Requests that nobody waits for on a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from gateway.errors import Overloaded

MOST = 1000
"""In flight, of one worker. Those that wait for a place at a backend count."""


class BackgroundRequests:
    """Those in flight, by tenant and id. One per worker, which outlives policies; ``aclose`` it before them."""

    def __init__(self, *, most: int = MOST) -> None:
        self._most = most
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.closing = False
        """Those that are cancelled now are so because the worker stops."""

    def start(self, tenant: str, name: str, work: Coroutine[None, None, None]) -> None:
        """Raises ``Overloaded``."""
        if self.closing or len(self._tasks) >= self._most:
            work.close()
            raise Overloaded(
                f"{len(self._tasks)} requests run in the background, and no more are taken. Try again.",
                retry_after=5.0,
            )
        key = (tenant, name)
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def cancel(self, tenant: str, name: str) -> bool:
        """Whether it was in flight here. It has ended then."""
        task = self._tasks.get((tenant, name))
        if task is None:
            return False
        task.cancel()
        await asyncio.wait([task])
        return True

    async def aclose(self) -> None:
        """Cancel what is in flight, and take nothing more."""
        self.closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
