"""A request's slots at a backend, or its position in the queue for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.admission.adaptive_limit import SILENCE
from gateway.admission.fair_queue import FairQueue, QueueTerms, Waiter
from gateway.admission.fair_shares import Flow

LOOK_FOR_IDLE = 0.25
"""Seconds between two looks for idle capacity, of which other workers and engines do not tell."""


class Lender(Protocol):
    """The pool, as leases know it."""

    def expected_wait(self, ahead: int, tokens: int, terms: QueueTerms, answers: int = 1) -> float | None: ...

    def on_waiting(self) -> None: ...

    def take_back(self, lease: SlotLease) -> None: ...

    def take_back_one(self, lease: SlotLease) -> None: ...

    def grant_next(self) -> None: ...


@dataclass(slots=True, eq=False)
class SlotLease:
    """To be released, whatever happens."""

    _pool: Lender
    tokens: int
    terms: QueueTerms
    answers: int = 1
    """It takes a slot for each."""
    tier: str = ""
    tenant: str = ""
    service: float | None = None
    """Expected seconds from dispatch to the last token; None where nothing is known yet."""
    granted_at: float | None = None
    """On the pool's clock."""
    reclaim: Callable[[], None] | None = None
    """Asks the holder to give it back; None for what nobody may ask back."""
    asked_back: bool = False
    beside_lines: bool = False
    """What can be asked back was in flight when it was granted."""
    _queue: FairQueue[SlotLease] | None = None
    """In which it waits, or has waited."""
    _waiter: Waiter[SlotLease] | None = None
    _wakeup: asyncio.Future[None] | None = None
    _released: bool = False
    _finished: int = 0

    @property
    def is_granted(self) -> bool:
        return self.granted_at is not None

    @property
    def position(self) -> int:
        """In the queue, 1 being next; 0 once granted."""
        if self._waiter is None or self._queue is None:
            return 0
        return self._queue.position(self._waiter)

    @property
    def expected_wait(self) -> float | None:
        """Seconds; None where nothing is known yet."""
        if self._waiter is None or self._queue is None:
            return 0.0
        ahead = self._queue.tokens_ahead(self._waiter)
        return self._pool.expected_wait(ahead, self.tokens, self.terms, self.answers)

    @property
    def flow(self) -> Flow:
        return Flow(self.tier, self.tenant, self.terms.weight)

    @property
    def unfinished(self) -> int:
        """Answers that are not complete."""
        return self.answers - self._finished

    async def wait(self, seconds: float) -> bool:
        """Wait so long at most; whether it is granted."""
        if not self.is_granted:
            loop = asyncio.get_running_loop()
            end = loop.time() + seconds
            look = SILENCE if self.reclaim is None else LOOK_FOR_IDLE
            while not self.is_granted and (left := end - loop.time()) > 0:
                self._wakeup = loop.create_future()
                # Not ``asyncio.wait``, which costs a long queue as much as all else that it does.
                timer = loop.call_later(min(left, look), _wake, self._wakeup)
                try:
                    await self._wakeup
                finally:
                    timer.cancel()
                self._pool.on_waiting()
        return self.is_granted

    def enqueue(self, queue: FairQueue[SlotLease], waiter: Waiter[SlotLease]) -> None:
        """For the pool alone."""
        self._queue, self._waiter = queue, waiter

    def grant(self, now: float) -> None:
        """For the pool alone."""
        self.granted_at = now
        self._waiter = None
        if self._wakeup is not None:
            _wake(self._wakeup)

    def correct_tokens(self, tokens: int) -> None:
        """Replace the estimate by the ``tokens`` that were used, in the accounts of its tenant and tier."""
        if self._queue is not None and self.reclaim is None:
            self._queue.correct(self.tier, self.terms, self.tenant, tokens - self.tokens)

    def release_one(self) -> None:
        """One of several answers is complete: its slot goes to the next in the queue."""
        if self._finished < self.answers - 1 and self.is_granted and not self._released:
            self._finished += 1
            self._pool.take_back_one(self)

    def release(self) -> None:
        """Give up the slots, or the position in the queue. Idempotent."""
        if self._released:
            return
        self._released = True
        if self._waiter is None:
            self._pool.take_back(self)
        elif self._queue is not None:
            self._queue.remove(self._waiter)
            self._waiter = None
            self._pool.grant_next()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
