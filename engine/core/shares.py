"""Each tenant's use of batch slots and blocks, compared with a fair share: equal parts, by weight.

As in dominant resource fairness
(https://www.usenix.org/conference/nsdi11/dominant-resource-fairness-fair-allocation-multiple-resource-types), a
tenant's use is the larger of its parts of the two resources. Only tenants with open requests count: a single one may
have all. Each choice (``n``) takes a slot, as each is computed separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from engine.core.request import Request


class Shares:
    """A snapshot; ``add`` and ``remove`` follow what happens to running requests afterwards."""

    def __init__(
        self, running: Iterable[Request], waiting: Iterable[Request], *, max_num_seqs: int, blocks: int
    ) -> None:
        self._max_num_seqs = max_num_seqs
        self._blocks = blocks
        self._weights: dict[str, float] = {}
        self._running: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        for request in running:
            self.add(request)
        for request in waiting:
            self._register(request)
        self._total = sum(self._weights.values())

    def add(self, request: Request) -> None:
        self._register(request)
        self._running[request.tenant] += 1
        self._held[request.tenant] += request.held

    def remove(self, request: Request) -> None:
        self._running[request.tenant] -= 1
        self._held[request.tenant] -= request.held

    def excess(self, tenant: str, *, more: int = 0) -> float:
        """By how much its use, with ``more`` slots, exceeds its share: 0 or less is fair."""
        used = max((self._running[tenant] + more) / self._max_num_seqs, self._held[tenant] / self._blocks)
        return used * self._total / self._weights[tenant] - 1

    def within_share(self, request: Request) -> bool:
        """Whether its tenant would stay within its share with it. One slot is always within."""
        return not self._running[request.tenant] or self.excess(request.tenant, more=1) <= 0

    def victim(self, running: Iterable[Request], head: Request) -> Request | None:
        """Which of ``running`` is preempted for ``head``: the last of the tenant furthest above its share.

        No tenant loses its only slot, nor one to a request of lower priority.
        """
        last: dict[str, Request] = {}
        for request in running:
            if request.priority <= head.priority and request.tenant != head.tenant:
                last[request.tenant] = request
        above = [tenant for tenant in last if self._running[tenant] > 1 and self.excess(tenant) > 0]
        return last[max(above, key=self.excess)] if above else None

    def _register(self, request: Request) -> None:
        self._weights[request.tenant] = max(request.weight, self._weights.get(request.tenant, 0.0))


def divide(tokens: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """``tokens`` in parts as equal as possible, none larger than ``wanted``: what one does not want, the others get."""
    parts: dict[str, int] = {}
    for count, tenant in enumerate(sorted(wanted, key=wanted.__getitem__)):
        parts[tenant] = min(wanted[tenant], -(-tokens // (len(wanted) - count)))
        tokens -= parts[tenant]
    return parts
