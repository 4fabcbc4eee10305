"""What a guard could not judge, in the log: at once, and then once a minute with a count, as a server that is away
would fill it with a line for each text."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

EVERY = 60.0
"""Seconds between two lines about one guard."""


class Complaints:
    """Of one guard."""

    __slots__ = ("_clock", "_guard", "_next", "_untold")

    def __init__(self, guard: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._guard = guard
        self._clock = clock
        self._next = float("-inf")
        self._untold = 0

    def tell(self, why: str) -> None:
        now = self._clock()
        if now < self._next:
            self._untold += 1
            return
        more = f" (and {self._untold:,} more since the last such line)" if self._untold else ""
        log.warning("guard '%s' could not judge a text: %s%s", self._guard, why, more)
        self._next, self._untold = now + EVERY, 0
