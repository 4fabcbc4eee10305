"""Which entries of block tables are new to somebody who has kept those of the plans before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.core.block_pool import GONE
from engine.core.plan import ScheduledRequest


@dataclass(slots=True)
class _Known:
    blocks: list[int]
    """The scheduler's own list: another one is another table, as that of a request that was preempted and is back."""
    end: int
    """Entries known,"""
    last: int
    """and the last of them in the first group."""


class TableChanges:
    """A block that a request's tokens have filled stays in its table. So what changes from step to step is where new
    tokens are written, and what the scheduler says it has altered: ``Plan.altered``."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._known: dict[int, _Known] = {}

    def alter(self, altered: Mapping[int, int]) -> None:
        """Called once with each plan that is told, before ``since``."""
        for request_id, index in altered.items():
            known = self._known.get(request_id)
            if known is not None and index < known.end:
                known.end, known.last = index, GONE

    def since(self, scheduled: ScheduledRequest) -> tuple[int, int]:
        """(first, end): the step needs the entries before ``end``, of which those from ``first`` on are new. From now
        on they are known."""
        size, start, blocks = self._block_size, scheduled.start, scheduled.blocks
        end = -(-(start + len(scheduled.tokens)) // size)
        known = self._known.get(scheduled.request_id)
        last = blocks[end - 1]
        if known is None or known.blocks is not blocks:
            self._known[scheduled.request_id] = _Known(blocks, end, last)
            return 0, end
        first = min(start // size, known.end)
        if first == end - 1 and known.end == end and known.last == last and not scheduled.others:
            # Within the block of the step before.
            return end, end
        known.end, known.last = end, last
        return first, end

    def forget(self, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            self._known.pop(request_id, None)

    def clear(self) -> None:
        self._known.clear()
