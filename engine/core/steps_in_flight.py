"""Steps that were submitted and are not committed yet, and the blocks that they may still write to."""

from __future__ import annotations

from engine.core.block_tables import BlockTables
from engine.core.request import Request


class StepsInFlight:
    """Steps are numbered, and committed in the order in which they were submitted.

    A request that ends while a step with it is in flight keeps its blocks until that step has landed: no block is given
    to another while something writes to it.
    """

    def __init__(self, tables: BlockTables) -> None:
        self.submitted = 0
        """The number of the last step that was submitted,"""
        self.landed = 0
        """and of the last one whose results are there."""
        self.ended: list[Request] = []
        """Those that have ended, and hold their blocks until they are out of all steps."""
        self._tables = tables

    def __contains__(self, request: Request) -> bool:
        return request.step > self.landed

    def __len__(self) -> int:
        return self.submitted - self.landed

    def close(self, request: Request) -> None:
        """Gives its blocks back, now or when they are written."""
        if request in self:
            self.ended.append(request)
        else:
            self._tables.close(request)

    def land(self, steps: int = 1) -> None:
        self.landed += steps
        if self.ended:
            for request in self.ended:
                if request not in self:
                    self._tables.close(request)
            self.ended = [request for request in self.ended if request in self]
