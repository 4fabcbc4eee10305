"""Long texts, cut into overlapping pieces that are scanned one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.findings import Finding
from gateway.guards.scanners.scanner import Origin

PIECE = 4000
"""Characters that are scanned at once; a longer text is cut, and others may run between its pieces."""
ONGOING = 16_000
"""Characters of one thing, longer than any window, that is seen as one."""
SHARE = PIECE
"""Characters that are given to the slower check at once: each such share of a request has the guard's ``timeout``."""
MOST = 256
"""Pieces that are given to a check at once."""


class Piece(NamedTuple):
    text: int
    """Which of the texts it is of."""
    start: int
    behind: int
    """What ends before it was for the piece before to tell."""
    border: int
    """What begins past it is for the next one."""
    words: str


class Cut:
    """A text on its way through the fast check, piece by piece."""

    __slots__ = ("_end", "_number", "_overlap", "_step", "_text", "origin", "piece")

    def __init__(self, number: int, text: str, origin: Origin, size: int, overlap: int) -> None:
        """``text`` is the ``number``th, and not empty; pieces of ``size`` characters overlap twice by ``overlap``."""
        self.origin = origin
        self._number = number
        self._text = text
        self._overlap = min(overlap, size)
        self._step = max(size - 2 * self._overlap, self._overlap)
        self._end = min(size, len(text))
        self.piece = self._next(0, 0)

    def goes_on(self, findings: Sequence[Finding]) -> bool:
        """Whether there is another ``piece``; ``findings`` are those in the last one that its end may have cut."""
        end = self._end
        if end == len(self._text):
            return False
        behind = self.piece.border
        start = max(behind - self._overlap, 0)
        begun = ongoing(findings, self.piece.start, end)
        self._end = min(end + self._step, len(self._text))
        self.piece = self._next(start if begun is None else min(start, begun), behind)
        return True

    def _next(self, start: int, behind: int) -> Piece:
        # The first half of the overlap is what the piece before decides, the second what it decides it by.
        border = self._end - self._overlap if self._end < len(self._text) else self._end + 1
        return Piece(self._number, start, behind, border, self._text[start : self._end])


def shares(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """As they are given to the slower check: a longer one alone."""
    share: list[Piece] = []
    characters = 0
    for piece in pieces:
        characters += len(piece.words)
        if share and (characters > SHARE or len(share) == MOST):
            yield share
            share, characters = [], len(piece.words)
        share.append(piece)
    if share:
        yield share


def ongoing(findings: Sequence[Finding], start: int, end: int) -> int | None:
    """Where something began that goes on at the end of what was scanned, ``[start, end)``: a private key, perhaps.

    The next scan is to begin there, so as to see that it is still the same.
    """
    if not findings or start + findings[-1].end < end or end - start - findings[-1].start > ONGOING:
        return None
    return start + findings[-1].start
