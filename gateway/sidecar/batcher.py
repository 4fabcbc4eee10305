"""Many callers, one model: what waits is computed together, what was computed lately is remembered."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.sidecar.api import SidecarBusy, SidecarDown, SidecarError

V = TypeVar("V")


@dataclass(eq=False, slots=True)
class _Work(Generic[V]):
    text: str
    waiting: set[asyncio.Future[V]] = field(default_factory=set)
    taken: bool = False


class Batcher(Generic[V]):
    """``compute`` gives a value for each text; it runs in ``executor``, one batch at a time.

    Equal texts under way share one computation. What nobody waits for any more is not computed, unless it was taken
    up already.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[str]], Sequence[V]],
        executor: Executor,
        *,
        max_batch: int,
        max_queue: int,
        max_characters: int = 4096,
        remembered: int = 1024,
    ) -> None:
        """``max_characters`` keeps a batch short in time, as a single core gains nothing from longer ones."""
        self._compute = compute
        self._executor = executor
        self._max_batch = max_batch
        self._max_queue = max_queue
        self._max_characters = max_characters
        self._remembered = remembered
        self._recent: OrderedDict[str, V] = OrderedDict()
        self._works: dict[str, _Work[V]] = {}
        """Those that wait and those being computed."""
        self._queue: OrderedDict[str, _Work[V]] = OrderedDict()
        self._runner: asyncio.Task[None] | None = None
        self.batches = 0
        """How many were computed."""
        self.computed = 0
        """How many texts were."""

    def __len__(self) -> int:
        """Texts that wait."""
        return len(self._queue)

    async def get(self, texts: Iterable[str]) -> list[V]:
        """Raises ``SidecarBusy`` if not all of them find a place in the queue, and what ``compute`` raises."""
        wanted = list(texts)
        fresh = {text for text in wanted if text not in self._recent and text not in self._works}
        if len(self._queue) + len(fresh) > self._max_queue:
            raise SidecarBusy(f"{len(self._queue)} texts wait already, and {self._max_queue} are the most")
        pending = [self._one(text) for text in wanted]
        try:
            return [one if not isinstance(one, asyncio.Future) else await one for one in pending]
        finally:
            for text, one in zip(wanted, pending, strict=True):
                if isinstance(one, asyncio.Future):
                    self._leave(text, one)

    def _one(self, text: str) -> V | asyncio.Future[V]:
        if text in self._recent:
            self._recent.move_to_end(text)
            return self._recent[text]
        work = self._works.get(text)
        if work is None:
            work = self._works[text] = self._queue[text] = _Work(text)
            if self._runner is None or self._runner.done():
                self._runner = asyncio.create_task(self._run(), name="batches")
        answered: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        work.waiting.add(answered)
        return answered

    def _leave(self, text: str, answered: asyncio.Future[V]) -> None:
        if answered.done():
            if not answered.cancelled():
                answered.exception()  # a second text of the same caller may have failed unseen
        else:
            answered.cancel()
        work = self._works.get(text)
        if work is None or answered not in work.waiting:
            return
        work.waiting.discard(answered)
        if not work.waiting and not work.taken:
            del self._works[text], self._queue[text]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                await asyncio.sleep(0)  # whoever asks in this very turn of the loop comes along
                batch = self._take()
                if not batch:
                    continue
                texts = [work.text for work in batch]
                try:
                    values = await loop.run_in_executor(self._executor, self._compute, texts)
                except Exception as error:  # whatever a foreign model raises is its callers' to hear
                    failed = error if isinstance(error, SidecarError) else SidecarError(_told(error))
                    self._settle(batch, failed)
                    continue
                self.batches += 1
                self.computed += len(batch)
                for work, value in zip(batch, values, strict=True):
                    self._remember(work.text, value)
                    del self._works[work.text]
                    for answered in work.waiting:
                        if not answered.done():
                            answered.set_result(value)
        finally:
            self._settle(list(self._works.values()), SidecarDown("the sidecar is shutting down"))
            self._queue.clear()

    def _take(self) -> list[_Work[V]]:
        """The longest waiting, and as many more as are to be computed with it, in the order of their lengths."""
        batch: list[_Work[V]] = []
        characters = 0
        while self._queue and len(batch) < self._max_batch:
            text = next(iter(self._queue))
            characters += len(text)
            if batch and characters > self._max_characters:
                break
            work = self._queue.pop(text)
            work.taken = True
            batch.append(work)
        return sorted(batch, key=lambda work: len(work.text))

    def _remember(self, text: str, value: V) -> None:
        self._recent[text] = value
        if len(self._recent) > self._remembered:
            self._recent.popitem(last=False)

    def _settle(self, works: Sequence[_Work[V]], error: SidecarError) -> None:
        for work in works:
            del self._works[work.text]
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
