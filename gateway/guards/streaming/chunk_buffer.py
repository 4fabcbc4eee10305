"""An answer read by a task of its own, so that its consumer can wait for other events too."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing

from gateway.types import Chunk, Chunks

AHEAD = 64
"""Chunks that are read ahead."""


class ChunkBuffer:
    """Reads up to ``AHEAD`` chunks ahead of ``take``."""

    def __init__(self, chunks: Chunks) -> None:
        self.ready: deque[Chunk] = deque()
        self.ended = False
        """No more will come."""
        self.error: BaseException | None = None
        """What ended it early."""
        self._chunks = chunks
        self._awake = False
        self._consumer: asyncio.Future[None] | None = None
        """While it waits."""
        self._caught_up: asyncio.Future[None] | None = None
        """While somebody waits until the consumer does."""
        self._capacity: asyncio.Future[None] | None = None
        """While the reading task waits for it."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._read())

    @property
    def is_waited_for(self) -> bool:
        """The consumer waits, and nothing has come that it would see to."""
        return self._consumer is not None and not self._awake

    def wake(self, *_: object) -> None:
        """Make ``wait`` return."""
        if self._awake:
            return
        self._awake = True
        if self._consumer is not None and not self._consumer.done():
            self._consumer.set_result(None)

    async def wait(self) -> None:
        """For a chunk, the end, or a ``wake``."""
        if not self._awake:
            self._consumer = self._loop.create_future()
            if self._caught_up is not None and not self._caught_up.done():
                self._caught_up.set_result(None)
            try:
                await self._consumer
            finally:
                self._consumer = None
        self._awake = False

    async def caught_up(self) -> None:
        """Until the consumer has seen to all that has come, and waits. For the one that reads."""
        while not self.is_waited_for:
            self._caught_up = self._loop.create_future()
            await self._caught_up

    def take(self) -> list[Chunk]:
        """All chunks that are ready."""
        chunks = list(self.ready)
        self.ready.clear()
        if self._capacity is not None and not self._capacity.done():
            self._capacity.set_result(None)
        return chunks

    def stop(self, why: str | None = None) -> None:
        """Cancel the reading task, with ``why`` as the message."""
        self._task.cancel(why)

    async def aclose(self) -> None:
        """``stop``, and wait until it has ended."""
        self.stop()
        await asyncio.wait({self._task})
        self.error = None  # it leads to the frames that it came through, which hold this object

    async def _read(self) -> None:
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    self.ready.append(chunk)
                    self.wake()
                    if len(self.ready) >= AHEAD:
                        self._capacity = self._loop.create_future()
                        await self._capacity
                        self._capacity = None
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self.wake()
