"""A measured speed."""

from __future__ import annotations

import math


class Rate:
    """Amount per second of busy time, an exponential moving average with a time constant of ``memory`` seconds."""

    def __init__(self, memory: float = 10.0) -> None:
        self._memory = memory
        self._amount = 0.0
        self._seconds = 0.0

    @property
    def value(self) -> float:
        """0 before the first measurement."""
        return self._amount / self._seconds if self._seconds else 0.0

    def add(self, amount: float, seconds: float) -> None:
        if seconds > 0:
            fade = math.exp(-seconds / self._memory)
            self._amount = self._amount * fade + amount
            self._seconds = self._seconds * fade + seconds
