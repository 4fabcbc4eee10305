"""A clock for limits: Unix time that goes on whatever becomes of the machine's."""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Unix time in seconds that never goes back and never stands still.

    Where the machine's clock is set back, it goes on by the monotonic one: else what was counted in the hour that comes
    again would count for that hour more, and a day that begins again would bring a budget again. Where the machine's
    clock is ahead (set forward, or after a sleep, in which the monotonic one stands still), it follows.
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
