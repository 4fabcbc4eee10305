"""Micro-batching: what many callers want of one model is computed in batches, and recent results are cached."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.sidecar.api import TENANT, SidecarBusy, SidecarDown, SidecarError
from gateway.sidecar.tenant_queue import TenantQueue

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
SHORT = 512
"""Characters of a text that counts as short: half of what the shipped embedder reads at once."""


@dataclass(eq=False, slots=True)
class _Job(Generic[K, V]):
    key: tuple[str, K]
    """A tenant and an item: tenants share neither turns nor results, whose timing would tell what another asked."""
    waiting: set[asyncio.Future[V]] = field(default_factory=set)
    taken: bool = False


TEXT_COST = 64
"""Characters that each text counts beside its own: a model's fixed cost."""


def text_cost(text: str) -> int:
    """In characters."""
    return len(text) + TEXT_COST


class Batcher(Generic[K, V]):
    """``compute`` gives a value for each item; it runs in ``executor``, one batch at a time.

    Tenants (``TENANT``) take turns. Equal items of one tenant in flight share one computation. Items that nobody waits
    for any more are not computed, unless their batch has begun.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[K]], Sequence[V]],
        executor: Executor,
        *,
        max_batch: int,
        max_queue: int,
        max_cost: int = 1024,
        cost: Callable[[K], int],
        remembered: int = 1024,
    ) -> None:
        """``max_cost`` bounds a batch's time, which the next caller waits for; a single core gains nothing from
        longer ones. An item that costs more by itself is a batch of its own."""
        self._compute = compute
        self._executor = executor
        self._max_batch = max_batch
        self._max_queue = max_queue
        self._max_cost = max_cost
        self._cost = cost
        self._remembered = remembered
        self._recent: OrderedDict[tuple[str, K], V] = OrderedDict()
        self._jobs: dict[tuple[str, K], _Job[K, V]] = {}
        """Queued, and being computed."""
        self._queue: TenantQueue[tuple[str, K]] = TenantQueue()
        self._runner: asyncio.Task[None] | None = None
        self.batches = 0
        """Batches computed."""
        self.computed = 0
        """Items computed."""

    def __len__(self) -> int:
        """Items that are queued."""
        return len(self._queue)

    async def get(self, items: Iterable[K]) -> list[V]:
        """Raises ``SidecarBusy`` if the queue has no capacity for all of them, and what ``compute`` raises.

        When it is full, items of the tenant with the most queued are evicted in favour of those with fewer.
        """
        tenant = TENANT.get()
        wanted = [(tenant, item) for item in items]
        fresh = {key for key in wanted if key not in self._recent and key not in self._jobs}
        busy = SidecarBusy(f"{len(self._queue)} are queued already, and {self._max_queue} are the limit")
        if len(fresh) > self._max_queue:
            raise busy
        while len(self._queue) + len(fresh) > self._max_queue:
            evicted = self._queue.evict(tenant, len(fresh))
            if evicted is None:
                raise busy
            self._fail([self._jobs[evicted]], busy)
        pending = [self._one(key) for key in wanted]
        try:
            return [one if not isinstance(one, asyncio.Future) else await one for one in pending]
        finally:
            for key, one in zip(wanted, pending, strict=True):
                if isinstance(one, asyncio.Future):
                    self._leave(key, one)

    def _one(self, key: tuple[str, K]) -> V | asyncio.Future[V]:
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job(key)
            self._queue.push(key[0], key, self._cost(key[1]))
            if self._runner is None or self._runner.done():
                self._runner = asyncio.create_task(self._run(), name="batches")
        answered: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        job.waiting.add(answered)
        return answered

    def _leave(self, key: tuple[str, K], answered: asyncio.Future[V]) -> None:
        if answered.done():
            if not answered.cancelled():
                answered.exception()  # retrieved, as a second item of the same caller may have failed too
        else:
            answered.cancel()
        job = self._jobs.get(key)
        if job is None or answered not in job.waiting:
            return
        job.waiting.discard(answered)
        if not job.waiting and not job.taken:
            del self._jobs[key]
            self._queue.remove(key[0], key)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                await asyncio.sleep(0)  # callers of the same turn of the loop join the batch
                batch = self._next_batch()
                if not batch:
                    continue
                items = [job.key[1] for job in batch]
                try:
                    values = await loop.run_in_executor(self._executor, self._compute, items)
                except Exception as error:  # a third-party model may raise anything
                    failed = error if isinstance(error, SidecarError) else SidecarError(_described(error))
                    self._fail(batch, failed)
                    continue
                self.batches += 1
                self.computed += len(batch)
                for job, value in zip(batch, values, strict=True):
                    self._remember(job.key, value)
                    del self._jobs[job.key]
                    for answered in job.waiting:
                        if not answered.done():
                            answered.set_result(value)
        finally:
            self._fail(list(self._jobs.values()), SidecarDown("the sidecar is shutting down"))
            self._queue.clear()

    def _next_batch(self) -> list[_Job[K, V]]:
        """The next batch, ordered by cost."""
        batch: list[_Job[K, V]] = []
        total = 0
        while self._queue and len(batch) < self._max_batch:
            total += self._cost(self._queue.head()[1])
            if batch and total > self._max_cost:
                break
            job = self._jobs[self._queue.pop()]
            job.taken = True
            batch.append(job)
        return sorted(batch, key=lambda job: self._cost(job.key[1]))

    def _remember(self, key: tuple[str, K], value: V) -> None:
        self._recent[key] = value
        if len(self._recent) > self._remembered:
            self._recent.popitem(last=False)

    def _fail(self, jobs: Sequence[_Job[K, V]], error: SidecarError) -> None:
        for job in jobs:
            del self._jobs[job.key]
            for answered in job.waiting:
                if not answered.done():
                    answered.set_exception(error)

    async def aclose(self) -> None:
        if self._runner is not None:
            self._runner.cancel()
            with suppress(asyncio.CancelledError):
                await self._runner


def _described(error: Exception) -> str:
    """Only the error's type, as its message could quote the text."""
    return f"the model failed ({type(error).__name__})"


class LengthBatcher(Generic[V]):
    """Short texts beside long ones: two batchers that compute the same, each with a thread and a queue of its own.

    In one queue a short text would wait for the long one that is being computed, which takes five to ten times as long,
    and much longer on a busy machine. With a thread of its own it runs at once.
    """

    def __init__(self, short: Batcher[str, V], long: Batcher[str, V]) -> None:
        self._short = short
        self._long = long

    def __len__(self) -> int:
        """Texts that are queued."""
        return len(self._short) + len(self._long)

    @property
    def batches(self) -> int:
        """Batches computed."""
        return self._short.batches + self._long.batches

    @property
    def computed(self) -> int:
        """Texts computed."""
        return self._short.computed + self._long.computed

    async def get(self, texts: Iterable[str]) -> list[V]:
        """As ``Batcher.get``; each kind has a queue of its own that may be full."""
        texts = list(texts)
        kinds = [len(text) > SHORT for text in texts]
        if not any(kinds):
            return await self._short.get(texts)
        if all(kinds):
            return await self._long.get(texts)
        both = [
            asyncio.ensure_future(self._short.get(text for text in texts if len(text) <= SHORT)),
            asyncio.ensure_future(self._long.get(text for text in texts if len(text) > SHORT)),
        ]
        try:
            short, long = map(iter, await asyncio.gather(*both))
        finally:
            for one in both:
                one.cancel()
        return [next(long) if is_long else next(short) for is_long in kinds]

    async def aclose(self) -> None:
        await self._short.aclose()
        await self._long.aclose()
