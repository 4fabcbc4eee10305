"""Waiting requests, in the order in which they will be served."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter

from engine.core.request import Request

RANK = attrgetter("rank")


class WaitingQueue:
    """Sorted by rank."""

    def __init__(self) -> None:
        self.by_priority: Counter[int] = Counter()
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __getitem__(self, position: int) -> Request:
        return self._requests[position]

    def ahead(self, request: Request) -> int:
        """How many are served before it."""
        return bisect_left(self._requests, request.rank, key=RANK)

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=RANK)
        self.by_priority[request.priority] += 1

    def remove(self, request: Request) -> None:
        position = self.ahead(request)
        if position == len(self._requests) or self._requests[position] is not request:
            raise ValueError(f"request {request.id} is not waiting")
        del self._requests[position]
        self.by_priority[request.priority] -= 1
        if not self.by_priority[request.priority]:
            del self.by_priority[request.priority]
