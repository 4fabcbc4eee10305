"""Requests by deadline."""

from __future__ import annotations

import heapq
from collections.abc import Collection


class Deadlines:
    """A heap of (deadline, request id); ended requests are removed when their deadline passes, or are too many."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, request_id: int, request_ids: Collection[int]) -> None:
        """``request_ids``: those that are open. Far deadlines of others would accumulate."""
        if len(self._heap) > 2 * len(request_ids) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in request_ids]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (deadline, request_id))

    def pop(self, now: float) -> int | None:
        """A request whose deadline has passed, if there is any."""
        if not self._heap or self._heap[0][0] > now:
            return None
        return heapq.heappop(self._heap)[1]
