"""How fast lines start: what they need of their worker's event loop is idle capacity, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SHARE = 0.5
"""Of the loop's processor time, that of requests included, up to which lines start freely."""
LAG = 0.02
"""Seconds by which a timer may be late: others compute here, or this machine is full."""
WINDOW = 0.05
"""Seconds over which it is judged."""
SHORTEST, LONGEST = 0.0005, 0.25
"""Seconds between two starts, where any are left between them."""


class Pace:
    """One for all lines of a worker: they start one after another, and never all at once."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        """``processor`` gives the seconds that the loop's thread has computed."""
        self._clock = clock
        self._processor = processor
        self._turns = asyncio.Lock()
        self._gap = SHORTEST
        self._since = (clock(), processor())

    @property
    def gap(self) -> float:
        """Seconds between two starts."""
        return self._gap

    async def turn(self) -> None:
        """Wait until another line may start."""
        async with self._turns:
            due = self._clock() + self._gap
            await asyncio.sleep(self._gap)
            self._judge(self._clock() - due)

    def _judge(self, lag: float) -> None:
        now, used = self._clock(), self._processor()
        since, used_then = self._since
        elapsed = now - since
        if elapsed < WINDOW:
            return
        self._since = now, used
        if elapsed > max(20 * WINDOW, 4 * self._gap):
            return  # nothing started for a while
        if used - used_then > SHARE * elapsed or lag > LAG:
            self._gap = min(LONGEST, self._gap * 1.5)
        else:
            self._gap = max(SHORTEST, self._gap / 1.25)
