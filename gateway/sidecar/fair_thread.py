"""A thread for blocking work with a bounded queue, in which tenants take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gateway.sidecar.api import TENANT, SidecarBusy
from gateway.sidecar.tenant_queue import TenantQueue

V = TypeVar("V")


class FairThread:
    """Runs one call at a time; tenants (``TENANT``) take turns."""

    def __init__(self, name: str, most: int) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.waiting = 0
        self._most = most
        self._queue: TenantQueue[asyncio.Future[bool]] = TenantQueue()
        self._weights: dict[asyncio.Future[bool], int] = {}
        self._busy = False

    async def run(self, weight: int, work: Callable[..., V], *arguments: Any, cost: int = 1) -> V:
        """``weight`` counts towards the bound, ``cost`` towards the tenant's share.

        Raises ``SidecarBusy``, and what ``work`` raises. A call that is cancelled before its turn is not run.
        """
        tenant = TENANT.get()
        self._evict(tenant, weight)
        self.waiting += weight
        try:
            if self._busy:
                await self._turn(tenant, weight, cost)
            self._busy = True
            try:
                return await asyncio.get_running_loop().run_in_executor(self.thread, work, *arguments)
            finally:
                self._next()
        finally:
            self.waiting -= weight

    def _evict(self, tenant: str, weight: int) -> None:
        """Evict calls of the tenant with the most queued, in favour of those with fewer."""
        left = self.waiting
        while left + weight > self._most:
            turn = self._queue.evict(tenant, 1)
            if turn is None:
                raise SidecarBusy(f"{self.waiting} texts are queued already, and {self._most} are the limit")
            left -= self._weights[turn]
            turn.set_result(False)

    async def _turn(self, tenant: str, weight: int, cost: int) -> None:
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.push(tenant, turn, cost)
        self._weights[turn] = weight
        try:
            mine = await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._queue.remove(tenant, turn)
            elif turn.result():
                self._next()  # its turn came as it was cancelled
            raise
        finally:
            del self._weights[turn]
        if not mine:
            raise SidecarBusy("the queue is full, and tenants with fewer texts in it come first")

    def _next(self) -> None:
        self._busy = len(self._queue) > 0
        if self._busy:
            self._queue.pop().set_result(True)
