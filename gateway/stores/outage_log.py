"""What a worker's log says of a Redis that is away: one line for all links of one use, and not too often."""

from __future__ import annotations

import asyncio
import logging

# Of the links, which is where an operator has always found these lines.
log = logging.getLogger("gateway.stores.redis_link")

TOGETHER = 0.5
"""Seconds in which parts of a cluster that are lost with one server are told of together."""
EVERY = 10.0
"""Seconds between two lines that it is away."""


class OutageLog:
    """``name``: what Redis is used for. ``meanwhile``: what becomes of that without it. ``parts``: of a cluster, each
    of which has a link."""

    def __init__(self, name: str, meanwhile: str = "", *, parts: int = 1) -> None:
        self._name = name
        self._meanwhile = f"; until it answers, {meanwhile}" if meanwhile else ""
        self._parts = parts
        self._away = 0
        self._most = 0
        """Parts that were away at once, since that was last told."""
        self._reason = ""
        self._told: float | None = None
        """When it was last told that Redis is away;"""
        self._untold = False
        """and whether it was not told since that it answers again."""
        self._lasting: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def went(self, reason: str) -> None:
        self._away += 1
        self._most = max(self._most, self._away)
        if self._timer is not None:
            return
        self._reason = reason
        loop = asyncio.get_running_loop()
        wait = TOGETHER if self._parts > 1 else 0.0
        if self._told is not None:
            wait = max(wait, self._told + EVERY - loop.time())
        if wait > 0:
            self._timer = loop.call_later(wait, self._tell)
        else:
            self._tell()

    def lasts(self, reason: str) -> None:
        """It stays away for another reason than at first."""
        if reason not in self._lasting:
            self._lasting.add(reason)
            log.warning("%s: %s", self._name, reason)

    def came_back(self) -> None:
        self._away -= 1
        if not self._away and self._timer is None:
            self._tell_back()

    def left(self) -> None:
        """A link that was away is closed: nobody is to hear later that it is."""
        self._away -= 1
        if not self._away and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer = None
        self._told = asyncio.get_running_loop().time()
        self._untold = True
        parts = f" ({self._most} of {self._parts} parts)" if self._parts > 1 else ""
        log.warning("%s: %s%s%s", self._name, self._reason.rstrip("."), parts, self._meanwhile)
        self._most = self._away
        if not self._away:
            self._tell_back()

    def _tell_back(self) -> None:
        self._lasting.clear()
        self._most = 0
        if self._untold:
            self._untold = False
            log.warning("%s: Redis answers again", self._name)
