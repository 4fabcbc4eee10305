"""Connections that a server broke off without a word: what one death of its process has ended is one incident."""

from __future__ import annotations

import time
from collections.abc import Callable

_TOGETHER = 1.0
"""Seconds in which all of a dead process's connections are seen to end."""


class Severed:
    """One backend's. A process takes all its connections with it: those whose requests were sent before the first of
    them ended, and that end soon after it, are taken to be lost by the same death."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = float("-inf")
        self._incidents = 0

    def incident(self, sent: float) -> str:
        """The name of what ended a request that was sent at ``sent``, as the clock has it."""
        now = self._clock()
        if sent > self._began or now - self._began > _TOGETHER:
            self._began = now
            self._incidents += 1
        return f"severed {self._incidents}"
