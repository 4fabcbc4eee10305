"""Bytes that are kept for a while: in memory if they are few, else in a file without a name."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator

IN_MEMORY = 2**20
PIECE = 2**18


class Spool:
    """Written once, from the beginning, and read as often as needed. The file is gone when it is closed."""

    def __init__(self) -> None:
        self.size = 0
        self._memory = bytearray()
        self._file: int | None = None

    async def write(self, data: bytes) -> None:
        self.size += len(data)
        if self._file is None:
            self._memory += data
            if len(self._memory) <= IN_MEMORY:
                return
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
            data, self._memory = bytes(self._memory), bytearray()
        await asyncio.to_thread(_write_all, self._file, data)

    def read(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at`` on, or as many as there are."""
        if at < 0 or size <= 0:
            return b""
        return bytes(self._memory[at : at + size]) if self._file is None else os.pread(self._file, size, at)

    async def pieces(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        while start < end:
            size = min(PIECE, end - start)
            piece = (
                self.read(start, size)
                if self._file is None
                else await asyncio.to_thread(self.read, start, size)
            )
            if not piece:
                raise OSError("a spooled file is shorter than what was written to it")
            yield piece
            start += len(piece)

    def close(self) -> None:
        file, self._file = self._file, None
        self._memory = bytearray()
        if file is not None:
            os.close(file)


class Section:
    """A part of a spool, as a file of its own."""

    def __init__(self, spool: Spool, start: int, end: int) -> None:
        self._spool = spool
        self._start = start
        self.size = end - start

    def read(self, at: int, size: int) -> bytes:
        return self._spool.read(self._start + at, min(size, self.size - at)) if at >= 0 else b""


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
