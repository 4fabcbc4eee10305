"""Many callers, one model: what waits is computed together, what was computed lately is remembered."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.sidecar.api import TENANT, SidecarBusy, SidecarDown, SidecarError
from gateway.sidecar.tenant_queue import TenantQueue

V = TypeVar("V")
_Key = tuple[str, str]
"""A tenant and a text: nobody waits for another's turn, or learns from the time it takes what another asked."""


@dataclass(eq=False, slots=True)
class _Job(Generic[V]):
    key: _Key
    waiting: set[asyncio.Future[V]] = field(default_factory=set)
    taken: bool = False


A_TEXT = 64
"""Characters for which a text counts beside its own: what a model does for each, however short."""


class Batcher(Generic[V]):
    """``compute`` gives a value for each text; it runs in ``executor``, one batch at a time.

    Tenants (``TENANT``) have their turns. Equal texts of one that are under way share one computation.
    What nobody waits for any more is not computed, unless it was taken
    up already.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[str]], Sequence[V]],
        executor: Executor,
        *,
        max_batch: int,
        max_queue: int,
        max_characters: int = 1024,
        remembered: int = 1024,
    ) -> None:
        """``max_characters`` keeps a batch short in time: who comes next waits for one, and a single core gains nothing
        from longer ones. A text that is longer by itself is a batch of its own."""
        self._compute = compute
        self._executor = executor
        self._max_batch = max_batch
        self._max_queue = max_queue
        self._max_characters = max_characters
        self._remembered = remembered
        self._recent: OrderedDict[_Key, V] = OrderedDict()
        self._works: dict[_Key, _Job[V]] = {}
        """Those that wait and those being computed."""
        self._queue: TenantQueue[_Key] = TenantQueue()
        self._runner: asyncio.Task[None] | None = None
        self.batches = 0
        """How many were computed."""
        self.computed = 0
        """How many texts were."""

    def __len__(self) -> int:
        """Texts that wait."""
        return len(self._queue)

    async def get(self, texts: Iterable[str]) -> list[V]:
        """Raises ``SidecarBusy`` if not all of them find a place in the queue, and what ``compute`` raises.

        Where it is full, whoever has the most waiting makes room for those who have less.
        """
        tenant = TENANT.get()
        wanted = [(tenant, text) for text in texts]
        fresh = {key for key in wanted if key not in self._recent and key not in self._works}
        busy = SidecarBusy(f"{len(self._queue)} texts wait already, and {self._max_queue} are the most")
        if len(fresh) > self._max_queue:
            raise busy
        while len(self._queue) + len(fresh) > self._max_queue:
            crowded_out = self._queue.crowd_out(tenant, len(fresh))
            if crowded_out is None:
                raise busy
            self._settle([self._works[crowded_out]], busy)
        pending = [self._one(key) for key in wanted]
        try:
            return [one if not isinstance(one, asyncio.Future) else await one for one in pending]
        finally:
            for key, one in zip(wanted, pending, strict=True):
                if isinstance(one, asyncio.Future):
                    self._leave(key, one)

    def _one(self, key: _Key) -> V | asyncio.Future[V]:
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        work = self._works.get(key)
        if work is None:
            work = self._works[key] = _Job(key)
            self._queue.push(key[0], key, len(key[1]) + A_TEXT)
            if self._runner is None or self._runner.done():
                self._runner = asyncio.create_task(self._run(), name="batches")
        answered: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        work.waiting.add(answered)
        return answered

    def _leave(self, key: _Key, answered: asyncio.Future[V]) -> None:
        if answered.done():
            if not answered.cancelled():
                answered.exception()  # a second text of the same caller may have failed unseen
        else:
            answered.cancel()
        work = self._works.get(key)
        if work is None or answered not in work.waiting:
            return
        work.waiting.discard(answered)
        if not work.waiting and not work.taken:
            del self._works[key]
            self._queue.remove(key[0], key)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                await asyncio.sleep(0)  # whoever asks in this very turn of the loop comes along
                batch = self._take()
                if not batch:
                    continue
                texts = [work.key[1] for work in batch]
                try:
                    values = await loop.run_in_executor(self._executor, self._compute, texts)
                except Exception as error:  # whatever a foreign model raises is its callers' to hear
                    failed = error if isinstance(error, SidecarError) else SidecarError(_told(error))
                    self._settle(batch, failed)
                    continue
                self.batches += 1
                self.computed += len(batch)
                for work, value in zip(batch, values, strict=True):
                    self._remember(work.key, value)
                    del self._works[work.key]
                    for answered in work.waiting:
                        if not answered.done():
                            answered.set_result(value)
        finally:
            self._settle(list(self._works.values()), SidecarDown("the sidecar is shutting down"))
            self._queue.clear()

    def _take(self) -> list[_Job[V]]:
        """Whoever is next, and as many more as are to be computed with it, in the order of their lengths."""
        batch: list[_Job[V]] = []
        characters = 0
        while self._queue and len(batch) < self._max_batch:
            characters += len(self._queue.head()[1]) + A_TEXT
            if batch and characters > self._max_characters:
                break
            work = self._works[self._queue.pop()]
            work.taken = True
            batch.append(work)
        return sorted(batch, key=lambda work: len(work.key[1]))

    def _remember(self, key: _Key, value: V) -> None:
        self._recent[key] = value
        if len(self._recent) > self._remembered:
            self._recent.popitem(last=False)

    def _settle(self, works: Sequence[_Job[V]], error: SidecarError) -> None:
        for work in works:
            del self._works[work.key]
            for answered in work.waiting:
                if not answered.done():
                    answered.set_exception(error)

    async def aclose(self) -> None:
        if self._runner is not None:
            self._runner.cancel()
            with suppress(asyncio.CancelledError):
                await self._runner


def _told(error: Exception) -> str:
    """A model's own message could quote the text, so that only its kind is told."""
    return f"the model failed ({type(error).__name__})"
