"""An answer read by a task of its own, so that its reader can wait for other things as well."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing

from gateway.types import Chunk, Chunks

AHEAD = 64
"""Chunks that are read before they are wanted."""


class ChunkBuffer:
    """Reads up to ``AHEAD`` chunks more than are taken."""

    def __init__(self, chunks: Chunks) -> None:
        self.ready: deque[Chunk] = deque()
        self.ended = False
        """No more will come."""
        self.error: BaseException | None = None
        """What ended it, if that was no good end."""
        self._chunks = chunks
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    def wake(self, *_: object) -> None:
        """Let ``wait`` return."""
        self._news.set()

    async def wait(self) -> None:
        """For a chunk, the end, or whatever else there was to ``wake`` for."""
        await self._news.wait()
        self._news.clear()

    def take(self) -> list[Chunk]:
        """All that is ready."""
        chunks = list(self.ready)
        self.ready.clear()
        self._room.set()
        return chunks

    def stop(self, why: str | None = None) -> None:
        """End the work behind it; ``why`` is told to it."""
        self._task.cancel(why)

    async def aclose(self) -> None:
        """``stop``, and wait until it has ended."""
        self.stop()
        await asyncio.wait({self._task})

    async def _read(self) -> None:
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    self.ready.append(chunk)
                    self._news.set()
                    if len(self.ready) >= AHEAD:
                        self._room.clear()
                        await self._room.wait()
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self._news.set()
