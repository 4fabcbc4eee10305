"""What each tenant holds of the seats and the blocks, and what would be fair: equal parts, by weight.

As in dominant resource fairness
(https://www.usenix.org/conference/nsdi11/dominant-resource-fairness-fair-allocation-multiple-resource-types), a
tenant's use is the larger of its parts of both. Only those count that want something now: who is alone has all. A
place counts each choice (``n``), as each is computed for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from engine.core.request import Request


class Shares:
    """At one moment. Who gives up a request is taken out by ``take``, and who gets a seat put in by ``give``."""

    def __init__(
        self, running: Iterable[Request], waiting: Iterable[Request], *, seats: int, blocks: int
    ) -> None:
        self._seats = seats
        self._blocks = blocks
        self._weights: dict[str, float] = {}
        self._running: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        for request in running:
            self.give(request)
        for request in waiting:
            self._want(request)
        self._total = sum(self._weights.values())

    def give(self, request: Request) -> None:
        self._want(request)
        self._running[request.tenant] += 1
        self._held[request.tenant] += len(request.blocks)

    def take(self, request: Request) -> None:
        self._running[request.tenant] -= 1
        self._held[request.tenant] -= len(request.blocks)

    def excess(self, tenant: str, *, more: int = 0) -> float:
        """By how much its use, with ``more`` seats, is above its share: 0 or less is fair."""
        used = max((self._running[tenant] + more) / self._seats, self._held[tenant] / self._blocks)
        return used * self._total / self._weights[tenant] - 1

    def owed(self, request: Request) -> bool:
        """Whether its tenant would keep within its share with it. One place is everyone's."""
        return not self._running[request.tenant] or self.excess(request.tenant, more=1) <= 0

    def yielding(self, running: Iterable[Request], head: Request) -> Request | None:
        """Who gives way to ``head``: the last of the tenant that has most beyond its share. None gives up its only
        place, nor one of a higher priority."""
        last: dict[str, Request] = {}
        for request in running:
            if request.priority <= head.priority and request.tenant != head.tenant:
                last[request.tenant] = request
        above = [tenant for tenant in last if self._running[tenant] > 1 and self.excess(tenant) > 0]
        return last[max(above, key=self.excess)] if above else None

    def _want(self, request: Request) -> None:
        self._weights[request.tenant] = max(request.weight, self._weights.get(request.tenant, 0.0))


def divide(tokens: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """``tokens`` in parts as equal as can be, none larger than ``wanted``: what one does not want, the others get."""
    parts: dict[str, int] = {}
    for count, tenant in enumerate(sorted(wanted, key=wanted.__getitem__)):
        parts[tenant] = min(wanted[tenant], -(-tokens // (len(wanted) - count)))
        tokens -= parts[tenant]
    return parts
