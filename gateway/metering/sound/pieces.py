"""A file of sound, read in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.metering.encoded_file import ReadableFile

PIECE = 2**18


class TooLong(ValueError):
    """The file has more parts than may be looked at."""


class Steps:
    """Parts of a file that may still be looked at: a hostile file has millions."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self) -> None:
        """Raises ``TooLong``."""
        self.left -= 1
        if self.left < 0:
            raise TooLong


class Tail:
    """What follows ``start`` in a file."""

    __slots__ = ("_file", "_start", "size")

    def __init__(self, file: ReadableFile, start: int) -> None:
        self._file = file
        self._start = start
        self.size = max(0, file.size - start)

    def read(self, at: int, size: int) -> bytes:
        return self._file.read(self._start + at, size) if at >= 0 else b""


def places(file: ReadableFile, pattern: re.Pattern[bytes], longest: int) -> Iterator[tuple[int, bytes]]:
    """Where ``pattern`` begins, and up to ``longest`` bytes from there on, which are all that it may look at."""
    for start in range(0, file.size, PIECE):
        data = file.read(start, PIECE + longest)
        for found in pattern.finditer(data):
            if found.start() >= PIECE:
                break
            yield start + found.start(), data[found.start() : found.start() + longest]
