"""A time-out for a server's answer that this process's own lag does not use up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STEPS = 5


@asynccontextmanager
async def patience(seconds: float) -> AsyncIterator[None]:
    """``asyncio.timeout``, by a clock that stops while the loop is blocked. Raises ``TimeoutError``.

    The time is counted in steps, each of which starts in a new iteration of the loop: after a loop was blocked, or a
    process got no processor, only one step has passed, and the answer that has arrived meanwhile is read.
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
