"""What small requests have read from stores: bounded in memory, paced, and in fair turns of tenants.

A request of 150 bytes can name a conversation or files of megabytes, which costs its caller nothing. So what is read is
held within bounds until the request has ended, no more than so many bytes a second are begun with, and tenants take
turns. What most requests read is too little to be counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from gateway.errors import Overloaded
from gateway.fair_turns import FairTurns

SMALL = 2**18
"""Bytes that are read without further ado, and at a time."""
MOST = 2**28
"""Bytes that requests under way hold in each worker, half of it for each tenant. A larger one holds them alone."""
RATE = 64 * 2**20
"""Bytes a second: their way through the gateway takes some 3 ms of its loop for each MiB."""
WAIT = 10.0
"""Seconds."""
MOST_WAITING = 64
"""Requests of one tenant."""


@dataclass(slots=True, eq=False)
class _Waiter:
    size: int
    granted: asyncio.Future[None]


class HeavyReads:
    """Of one worker."""

    def __init__(self, *, most: int = MOST, rate: float = RATE, wait: float = WAIT) -> None:
        self.turns = FairTurns()
        """For what is read, piece by piece."""
        self.held = 0
        self._most = most
        self._rate = rate
        self._wait = wait
        self._by_owner: dict[str, int] = {}
        self._waiting: dict[str, deque[_Waiter]] = {}
        """By tenant; whose turn comes next is first."""
        self._next = 0.0
        """When, on the loop's clock, the next may begin."""
        self._timer: asyncio.TimerHandle | None = None

    def of(self, owner: str) -> Reading:
        return Reading(self, owner)

    async def take(self, owner: str, size: int) -> None:
        """Raises ``Overloaded``."""
        loop = asyncio.get_running_loop()
        queue = self._waiting.setdefault(owner, deque())
        if len(queue) >= MOST_WAITING:
            raise self._refusal(size)
        waiter = _Waiter(size, loop.create_future())
        queue.append(waiter)
        self._pass_on()
        try:
            async with asyncio.timeout(self._wait):
                await waiter.granted
        except TimeoutError:
            self._left(owner, waiter)
            raise self._refusal(size) from None
        except asyncio.CancelledError:
            self._left(owner, waiter)
            raise

    def give_back(self, owner: str, size: int) -> None:
        self.held -= size
        self._by_owner[owner] -= size
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        self._pass_on()

    def _left(self, owner: str, waiter: _Waiter) -> None:
        """It does not wait any longer; it may have been granted in the same moment."""
        if waiter.granted.done() and not waiter.granted.cancelled():
            self.give_back(owner, waiter.size)
            return
        queue = self._waiting.get(owner, deque())
        if waiter in queue:
            queue.remove(waiter)
        if not queue:
            self._waiting.pop(owner, None)

    def _pass_on(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            if loop.time() < self._next:
                if self._timer is None:
                    self._timer = loop.call_at(self._next, self._later)
                return
            owner = next(
                (one for one, queue in self._waiting.items() if self._fits(one, queue[0].size)), None
            )
            if owner is None:
                return
            queue = self._waiting.pop(owner)
            waiter = queue.popleft()
            if queue:
                self._waiting[owner] = queue  # at the end
            if waiter.granted.done():
                continue  # it has left
            self.held += waiter.size
            self._by_owner[owner] = self._by_owner.get(owner, 0) + waiter.size
            self._next = loop.time() + waiter.size / self._rate
            waiter.granted.set_result(None)

    def _later(self) -> None:
        self._timer = None
        self._pass_on()

    def _fits(self, owner: str, size: int) -> bool:
        held = self._by_owner.get(owner, 0)
        return (not self.held or self.held + size <= self._most) and (
            not held or held + size <= self._most // 2
        )

    def _refusal(self, size: int) -> Overloaded:
        return Overloaded(
            f"This request has {size:,} bytes of conversations or files read, and too much is being read now. Try "
            "again in a moment, or with less.",
            code="too_much_read",
            retry_after=max(1.0, size / self._rate),
        )


class Reading:
    """What one request has read. To be released, whatever happens."""

    def __init__(self, reads: HeavyReads, owner: str) -> None:
        self.turns = reads.turns
        self._reads = reads
        self._owner = owner
        self._size = 0

    async def add(self, size: int) -> None:
        """Wait until so many bytes more may be read. Raises ``Overloaded``."""
        if size > SMALL:
            await self._reads.take(self._owner, size)
            self._size += size

    async def turn(self) -> None:
        """Wait until a piece of about ``SMALL`` bytes may be computed."""
        await self.turns.take(self._owner)

    def release(self) -> None:
        """Idempotent."""
        size, self._size = self._size, 0
        if size:
            self._reads.give_back(self._owner, size)
