"""How many lines run side by side: found by trying, as TCP finds the rate of a path it knows nothing of."""

from __future__ import annotations

FIRST = 2


class Window:
    """Additive increase, multiplicative decrease (Chiu and Jain 1989), with TCP's slow start (RFC 5681).

    It grows while it is used up and lines run without a wait, and halves where there is no capacity: once for all lines
    that were on their way then.
    """

    def __init__(self) -> None:
        self._size = float(FIRST)
        self._doubling = True
        self._halved_at = 0
        self._started = 0

    def room(self, running: int, most: int) -> bool:
        return running < min(int(self._size), most)

    def start(self) -> int:
        """A line starts. Its number among all that have."""
        self._started += 1
        return self._started

    def went_well(self, running: int, *, waited: bool) -> None:
        """A line got its place, after a wait or at once, while ``running`` did; it counts itself."""
        if waited:
            self._doubling = False
        elif running >= int(self._size):
            self._size += 1.0 if self._doubling else 1.0 / self._size

    def congested(self, started: int) -> None:
        """Line ``started`` found no capacity, or had to give its place back."""
        self._doubling = False
        if started > self._halved_at:
            self._size = max(1.0, self._size / 2)
            self._halved_at = self._started
