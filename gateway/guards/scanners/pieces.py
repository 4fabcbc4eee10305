"""Long texts, cut into overlapping pieces that are scanned one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.findings import Finding
from gateway.guards.scanners.scanner import Origin

PIECE = 4000
"""Characters that are scanned at once; a longer text is cut, and the event loop runs between its pieces."""
ONGOING = 16_000
"""Characters of one finding, longer than any window, that is still seen as one."""
BATCH_CHARACTERS = PIECE
"""Characters that are given to the slower check at once: each such batch of a request has the guard's ``timeout``."""
BATCH_PIECES = 256
"""Pieces that are given to a check at once."""


class Piece(NamedTuple):
    number: int
    """Of its text."""
    start: int
    behind: int
    """Findings that end before it belong to the piece before."""
    border: int
    """Findings that begin past it belong to the next piece."""
    text: str


class PieceCursor:
    """A text that goes through the fast check piece by piece."""

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
        # The piece before decides the first half of the overlap, with the second half as context.
        border = self._end - self._overlap if self._end < len(self._text) else self._end + 1
        return Piece(self._number, start, behind, border, self._text[start : self._end])


def batches(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Batches for the slower check; a longer piece is a batch by itself."""
    batch: list[Piece] = []
    characters = 0
    for piece in pieces:
        characters += len(piece.text)
        if batch and (characters > BATCH_CHARACTERS or len(batch) == BATCH_PIECES):
            yield batch
            batch, characters = [], len(piece.text)
        batch.append(piece)
    if batch:
        yield batch


def ongoing(findings: Sequence[Finding], start: int, end: int) -> int | None:
    """Where a finding began that touches the end of what was scanned, ``[start, end)``, such as a private key.

    The next scan begins there, so that it sees the whole of it.
    """
    if not findings or start + findings[-1].end < end or end - start - findings[-1].start > ONGOING:
        return None
    return start + findings[-1].start
