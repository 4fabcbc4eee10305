"""What takes long takes turns: one piece in each round of the event loop, and callers one after the other.

Scans of texts and vectors of embeddings are computed in the loop that everybody needs. Were each to go on after every
piece as soon as it likes, sixty of one caller would put sixty pieces before anybody else's next step.
"""

from __future__ import annotations

import asyncio
from collections import deque


class FairTurns:
    """For one kind of work in one event loop."""

    def __init__(self) -> None:
        self._taken = False
        """Somebody computes in this round, or has just been told to."""
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
            line = self._waiting.pop(owner)
            following = line.popleft()
            if line:
                self._waiting[owner] = line  # at the end
            if not following.done():
                following.set_result(None)
                loop.call_soon(self._pass_on, loop)
                return
        self._taken = False
