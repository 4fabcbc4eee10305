"""Long computations take turns: one piece per iteration of the event loop, round robin over callers.

Scans of texts and vectors of embeddings are computed in the loop that everybody needs. Without turns, sixty
computations of one caller would put sixty pieces before anybody else's next step.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

TURN = 0.005
"""Seconds for which chunks that came together are passed on before others have their turn."""


class FairTurns:
    """For one kind of work in one event loop."""

    def __init__(self) -> None:
        self._taken = False
        """A piece is computed in this iteration, or was just allowed to."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By caller; whose turn comes next is first."""

    async def take(self, owner: str) -> None:
        """Wait until a piece of ``owner``'s may be computed. Nothing needs to be given back."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._pass_on, loop)
            return
        mine = loop.create_future()
        self._waiting.setdefault(owner, deque()).append(mine)
        await mine

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            owner = next(iter(self._waiting))
            queue = self._waiting.pop(owner)
            following = queue.popleft()
            if queue:
                self._waiting[owner] = queue  # at the end
            if not following.done():
                following.set_result(None)
                loop.call_soon(self._pass_on, loop)
                return
        self._taken = False


class TimeSlice:
    """One answer's time at the loop: chunks that stand ready are passed on without a pause while it lasts."""

    __slots__ = ("_began", "_owner", "_turns")

    def __init__(self, turns: FairTurns, owner: str) -> None:
        self._turns = turns
        self._owner = owner
        self.begin()

    def begin(self) -> None:
        self._began = time.perf_counter()

    def is_over(self) -> bool:
        return time.perf_counter() - self._began > TURN

    async def next(self) -> None:
        """Let others run."""
        await asyncio.sleep(0)
        await self._turns.take(self._owner)
        self.begin()
