"""Waiting for a server, and for it alone: what this process keeps waiting by itself is not held against the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STEPS = 5


@asynccontextmanager
async def patience(seconds: float) -> AsyncIterator[None]:
    """``asyncio.timeout``, by a clock that stands still while the loop does. Raises ``TimeoutError``.

    The time is counted in steps, each of which begins where the loop has come round: a loop that was blocked, or a
    process that got no processor, is one step further, and finds the answer that has come meanwhile.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def step(left: int) -> None:
        nonlocal timer
        if left:
            timer = loop.call_later(seconds / STEPS, step, left - 1)
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        step(STEPS)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
