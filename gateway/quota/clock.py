"""A clock for limits: Unix time that never goes back, even if the machine's clock is set back."""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Unix time in seconds that never goes back and never stands still.

    Where the machine's clock is set back, this one continues by the monotonic clock: otherwise usage of the repeated
    hour would count an hour longer, and a day that starts twice would refill a budget twice. Where the machine's clock
    is ahead (set forward, or after a suspend, during which the monotonic clock stops), this one follows it.
    """

    def __init__(
        self, *, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._last = wall()
        self._at = steady()

    def __call__(self) -> float:
        at, wall = self._steady(), self._wall()
        last = self._last + at - self._at
        self._last = last = wall if wall > last else last
        self._at = at
        return last
