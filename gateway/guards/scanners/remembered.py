"""Verdicts that hold for a while: a conversation's earlier turns come again with every new one."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_ENTRIES = 10_000


class Remembered(Generic[T]):
    """By a digest of what was judged, never the text. The least recently used make way."""

    def __init__(
        self, ttl: float, *, most: int = MAX_ENTRIES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``ttl`` in seconds; 0: nothing is remembered."""
        self._ttl = ttl
        self._most = most
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def get(self, key: bytes) -> T | None:
        known = self._known.get(key)
        if known is None:
            return None
        until, value = known
        if self._clock() >= until:
            del self._known[key]
            return None
        self._known.move_to_end(key)
        return value

    def put(self, key: bytes, value: T) -> None:
        if self._ttl <= 0:
            return
        self._known[key] = (self._clock() + self._ttl, value)
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)


def digest(*parts: str) -> bytes:
    """The same for the same parts, in the same order."""
    hashed = blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.digest()
