"""Who gets a request, and by what a worker knows: as the product chooses (``gateway/routing/selector.py``), fast.

``least_loaded`` there sorts all candidates, a millisecond for a thousand of them; here the least is found in an array.
``tests/benchmarks/test_fleet.py`` holds both to the same choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

Knowledge = Literal["own", "told", "all", "none"]
"""``own``: a worker's own requests in flight, as ``least_loaded`` has it now; ``told``: an engine's figures of its last
poll, and what the worker sent since; ``all``: what no gateway can know, the bound; ``none``: at random."""
Counts = npt.NDArray[np.int32]


class Least:
    """The least loaded by ``knowledge``; equals at random."""

    def __init__(
        self,
        knowledge: Knowledge,
        workers: int,
        engines: int,
        rng: np.random.Generator,
        interval: float = 0.5,
        among: int | None = None,
    ) -> None:
        """``among``: so many that are drawn, in place of all."""
        self._among = among
        self._knowledge, self._rng = knowledge, rng
        self.loads: Counts = np.zeros(engines, np.int32)
        """What is really in flight at each."""
        self._avoided: dict[int, Counts] = {}
        """By worker: engines that it found away, as its breakers have it."""
        self._own = np.zeros((workers if knowledge == "own" else 1, engines), np.int32)
        self._interval = interval
        self._told: dict[int, tuple[float, Counts]] = {}
        self._draws: Iterator[float] = iter(())

    def choose(self, worker: int, first: int, last: int, at: float) -> int:
        match self._knowledge:
            case "none":
                loads = np.zeros(last - first, np.int32)
            case "own":
                loads = self._own[worker, first:last]
            case "all":
                loads = self.loads[first:last]
            case "told":
                loads = self._last_told(worker, at)[first:last]
        if (avoided := self._avoided.get(worker)) is not None:
            loads = loads + avoided[first:last]
        if self._among is not None and self._among < last - first:
            drawn = [self._draw(last - first) for _ in range(self._among)]
            return first + min(drawn, key=loads.__getitem__)
        least = np.flatnonzero(loads == loads.min())
        return first + int(least[self._draw(len(least))])

    def sent(self, worker: int, engine: int) -> None:
        self.loads[engine] += 1
        if self._knowledge == "own":
            self._own[worker, engine] += 1
        elif self._knowledge == "told":
            self._told[worker][1][engine] += 1

    def avoid(self, worker: int, engine: int) -> None:
        if worker not in self._avoided:
            self._avoided[worker] = np.zeros(len(self.loads), np.int32)
        self._avoided[worker][engine] = 2**20

    def is_back(self, engine: int) -> None:
        for avoided in self._avoided.values():
            avoided[engine] = 0

    def ended(self, worker: int, engine: int) -> None:
        self.loads[engine] -= 1
        if self._knowledge == "own":
            self._own[worker, engine] -= 1

    def _last_told(self, worker: int, at: float) -> Counts:
        """Workers poll at times of their own."""
        poll = np.floor(at / self._interval + worker * 0.618 % 1)
        known = self._told.get(worker)
        if known is None or known[0] != poll:
            known = self._told[worker] = (poll, self.loads.copy())
        return known[1]

    def _draw(self, below: int) -> int:
        if below == 1:
            return 0
        uniform = next(self._draws, None)
        if uniform is None:
            self._draws = iter(self._rng.random(8192).tolist())
            uniform = next(self._draws)
        return int(uniform * below)
