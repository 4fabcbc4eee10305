"""A thread for blocking work, with a bound on how much of it may wait, and turns for tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gateway.sidecar.api import TENANT, SidecarBusy
from gateway.sidecar.tenant_queue import TenantQueue

V = TypeVar("V")


class FairThread:
    """One piece of work at a time; tenants (``TENANT``) take turns."""

    def __init__(self, name: str, most: int) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.waiting = 0
        self._most = most
        self._line: TenantQueue[asyncio.Future[bool]] = TenantQueue()
        self._weights: dict[asyncio.Future[bool], int] = {}
        self._busy = False

    async def run(self, weight: int, work: Callable[..., V], *arguments: Any, cost: int = 1) -> V:
        """``weight`` counts towards the bound, ``cost`` towards the tenant's share.

        Raises ``SidecarBusy``, and what ``work`` raises. What is cancelled before its turn is not done.
        """
        tenant = TENANT.get()
        self._make_room(tenant, weight)
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

    def _make_room(self, tenant: str, weight: int) -> None:
        """Whoever has the most waiting makes room for those who have less."""
        left = self.waiting
        while left + weight > self._most:
            turn = self._line.crowd_out(tenant, 1)
            if turn is None:
                raise SidecarBusy(f"{self.waiting} texts wait already, and {self._most} are the most")
            left -= self._weights[turn]
            turn.set_result(False)

    async def _turn(self, tenant: str, weight: int, cost: int) -> None:
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._line.push(tenant, turn, cost)
        self._weights[turn] = weight
        try:
            mine = await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._line.remove(tenant, turn)
            elif turn.result():
                self._next()  # it came just as its owner left
            raise
        finally:
            del self._weights[turn]
        if not mine:
            raise SidecarBusy("the queue is full, and others who have less in it come before")

    def _next(self) -> None:
        self._busy = len(self._line) > 0
        if self._busy:
            self._line.pop().set_result(True)
