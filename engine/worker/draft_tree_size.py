"""How many draft tokens a tree has: the number that yields most tokens a second by measurement, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from engine.worker.draft_length import MARGIN, AcceptanceRate, CostCurve, DraftLengthPolicy

_SLOWEST = 1 / 64
_TRIALS = 8
"""One in so many trees is twice as large as what seems best, or half as large."""


class DraftTreePolicy(DraftLengthPolicy):
    """As ``DraftLengthPolicy``, but what a tree of some size yields is measured as it is, as it does not follow from
    how often one token is accepted. All requests of a step get trees of the same size, as far as they have room.

    Costs and yields are those of the size that was asked for. A proposer may give less, where it is not sure; it does
    so each time that it is asked.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._most = most
        self._yields: dict[int, tuple[int, float, float]] = {}
        """By bit length of a size: samples, mean size, mean number of accepted tokens."""
        self._asked: dict[int, int] = {}
        self._turn = 0

    def choose(self, base: int, limits: Mapping[int, int]) -> dict[int, int]:
        self._asked = super().choose(base, limits)
        if self._asked:
            self._turn += 1
            # A few samples may have been unlucky, and what is not asked for is not measured again.
            if self._turn % _TRIALS == 0:
                twice = self._turn % (2 * _TRIALS) == 0
                self._asked = {
                    request_id: max(1, min(2 * size, self._most, limits[request_id]) if twice else size // 2)
                    for request_id, size in self._asked.items()
                }
        return self._asked

    def record_acceptance(self, request_id: int, drafted: int, accepted: int) -> None:
        size = self._asked.get(request_id, drafted)
        key = size.bit_length()
        count, mean_size, mean = self._yields.get(key, (0, 0.0, 0.0))
        weight = max(1 / (count + 1), _SLOWEST)
        self._yields[key] = (
            count + 1,
            mean_size + weight * (size - mean_size),
            mean + weight * (accepted - mean),
        )

    def observe(self, base: int, drafted: int, accepted: int, seconds: float) -> None:
        super().observe(base, sum(self._asked.values()) if drafted else 0, accepted, seconds)

    def forget(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._asked.pop(request_id, None)

    def _best(
        self, curve: CostCurve, base: int, limits: Mapping[int, int], own: Mapping[int, AcceptanceRate]
    ) -> Counter[int]:
        best, chosen = MARGIN * base / curve.estimate(0), 0
        for size in sorted({1, 2, 3, *range(4, self._most, 2), self._most}):
            sizes = [min(size, limit) for limit in limits.values()]
            speed = (base + sum(map(self._accepted, sizes))) / curve.estimate(sum(sizes))
            if speed > best:
                best, chosen = speed, size
        return Counter({request_id: min(chosen, limit) for request_id, limit in limits.items() if chosen})

    def _accepted(self, size: int) -> float:
        """Of a tree's tokens, as its like had; in between what lies between."""
        points = [(0.0, 0.0), *sorted((mean, found) for _, mean, found in self._yields.values())]
        for (x, y), (u, v) in pairwise(points):
            if size <= u:
                return y + (v - y) * (size - x) / (u - x)
        return points[-1][1]
