"""A file that a request carries in base64, of which small pieces are read: it is never decoded whole."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error
from typing import Protocol

_LONGEST_HEAD = 256
"""Of a data URL, before its data."""


class ReadableFile(Protocol):
    """A file of which small pieces are read."""

    @property
    def size(self) -> int:
        """In bytes."""
        ...

    def read(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at`` on, or as many as there are."""
        ...


class EncodedFile:
    """``text`` from ``start`` on is base64 without line breaks; what is none has no bytes to read."""

    __slots__ = ("_start", "_text", "size")

    def __init__(self, text: str, start: int = 0) -> None:
        self._text, self._start = text, start
        padding = 2 if text.endswith("==") else text.endswith("=")
        self.size = max(0, len(text) - start - padding) * 3 // 4
        """In bytes."""

    @classmethod
    def of_url(cls, url: str) -> EncodedFile | None:
        """Of a ``data:`` URL in base64, or of bare base64; None where it would have to be fetched."""
        head, comma, _ = url[:_LONGEST_HEAD].partition(",")
        if comma and head.startswith("data:"):
            return cls(url, len(head) + 1) if head.endswith(";base64") else None
        return None if ":" in head else cls(url)

    def read(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at`` on, or as many as there are."""
        if at < 0 or size <= 0:
            return b""
        first, last = at // 3, -(-(at + size) // 3)
        piece = self._text[self._start + 4 * first : self._start + 4 * last]
        try:
            data = b64decode(piece + "=" * (-len(piece) % 4), validate=True)
        except (Error, ValueError):
            return b""
        return data[at - 3 * first : at - 3 * first + size]
