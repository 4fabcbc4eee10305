"""A store in this process's memory: nothing to install, nothing shared, gone with the process."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

ENTRY = 230
"""Bytes that Python takes for an entry beside its key and value (tracemalloc, Python 3.11)."""


class MemoryStore:
    """Keeps the newest ``max_bytes`` of entries, with all that they take; the oldest go first."""

    def __init__(self, *, max_bytes: int = 16 * 2**20, clock: Callable[[], float] = time.monotonic) -> None:
        self._values: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._bytes = 0
        self._max_bytes = max_bytes
        self._clock = clock

    async def put(self, values: Mapping[str, bytes], ttl: float) -> None:
        expires = self._clock() + ttl
        for key, value in values.items():
            self._drop(key)
            # What orjson returns keeps the buffer that it was written in, of up to ten times its length.
            value = bytes(memoryview(value))
            self._values[key] = (value, expires)
            self._bytes += ENTRY + len(key) + len(value)
        self._shrink()

    async def get(self, key: str) -> bytes | None:
        value, expires = self._values.get(key, (None, 0.0))
        if value is not None and expires <= self._clock():
            self._drop(key)
            return None
        return value

    async def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        return [await self.get(key) for key in keys]

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        expires = self._clock() + ttl
        for key in keys:
            if (value := await self.get(key)) is not None:
                self._values[key] = (value, expires)
                self._values.move_to_end(key)

    async def delete(self, key: str) -> None:
        self._drop(key)

    def resize(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._shrink()

    async def aclose(self) -> None:
        self._values.clear()
        self._bytes = 0

    def _shrink(self) -> None:
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._values)))

    def _drop(self, key: str) -> None:
        if key in self._values:
            value, _ = self._values.pop(key)
            self._bytes -= ENTRY + len(key) + len(value)
