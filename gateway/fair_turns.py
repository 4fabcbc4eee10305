"""Long computations take turns: one piece per iteration of the event loop, round robin over callers.

Scans of texts and vectors of embeddings are computed in the loop that everybody needs. Without turns, sixty
computations of one caller would put sixty pieces before anybody else's next step.
"""

from __future__ import annotations

import asyncio
from collections import deque


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
