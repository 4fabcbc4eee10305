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
        self._changed = asyncio.Event()
        self._capacity = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    def wake(self, *_: object) -> None:
        """Make ``wait`` return."""
        self._changed.set()

    async def wait(self) -> None:
        """For a chunk, the end, or a ``wake``."""
        await self._changed.wait()
        self._changed.clear()

    def take(self) -> list[Chunk]:
        """All chunks that are ready."""
        chunks = list(self.ready)
        self.ready.clear()
        self._capacity.set()
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
                    self._changed.set()
                    if len(self.ready) >= AHEAD:
                        self._capacity.clear()
                        await self._capacity.wait()
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self._changed.set()
