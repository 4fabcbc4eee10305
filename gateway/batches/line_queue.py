"""The lines of one model in one batch that this process knows to have no result: which may run now, which do."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from itertools import chain

from gateway.batches.line import Line


class LineQueue:
    """Each line is in one place: it waits, is put off until a time, runs, or is done.

    ``done`` is final. A line that was given back runs again, after those that never ran.
    """

    def __init__(self) -> None:
        self._waiting: deque[Line] = deque()
        self._put_off: list[tuple[float, int, Line]] = []
        self.running: dict[int, Line] = {}
        self.last: Line | None = None
        """Of those that were added: the next to be added follow it."""

    def __len__(self) -> int:
        """Lines that are not done."""
        return len(self._waiting) + len(self._put_off) + len(self.running)

    @property
    def waiting(self) -> int:
        """Lines that may run, or will when their time comes."""
        return len(self._waiting) + len(self._put_off)

    @property
    def waiting_size(self) -> int:
        """Characters of their bodies."""
        put_off = (line for _, _, line in self._put_off)
        return sum(len(line.body) for line in chain(self._waiting, put_off))

    def add(self, lines: Iterable[Line]) -> None:
        """In order."""
        for line in lines:
            self._waiting.append(line)
            self.last = line

    def take(self, now: float) -> Line | None:
        """The next to run, which runs from now on."""
        line = None
        if self._put_off and self._put_off[0][0] <= now:
            line = heapq.heappop(self._put_off)[2]
        elif self._waiting:
            line = self._waiting.popleft()
        if line is not None:
            self.running[line.number] = line
        return line

    def give_back(self, number: int, at: float) -> None:
        """It runs no more, and may again from ``at`` on."""
        line = self.running.pop(number)
        heapq.heappush(self._put_off, (at, number, line))

    def put_off_no_more(self) -> None:
        """Those that were put off may run."""
        self._put_off = [(0.0, number, line) for _, number, line in self._put_off]
        heapq.heapify(self._put_off)

    def done(self, number: int) -> None:
        """It has a result."""
        del self.running[number]

    def next_at(self) -> float | None:
        """When a line may run: 0 is now; None: not before another one is given back or added."""
        if self._waiting:
            return 0.0
        return self._put_off[0][0] if self._put_off else None
