"""A short cut for the pieces of a streamed answer: from the read that brings one straight to the client.

A lone piece of text costs a wake-up of its request's task, and a step of every generator between the model's server and
the client, most of which only look on. While all of them do, the task sleeps on: what comes is handed to those that
look, and written, by the read itself. Whatever is not such a piece, or cannot be written at once, takes the usual way.

A stage must take part for that: it says which stream it made (``made``) and which it reads (``reads``). One that wraps
the stream of another without a word, to change or to keep it, is noticed by the next one, and the short cut is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Piece = TypeVar("Piece")


class Splice(Generic[Piece]):
    """One request's. Its stages come from the outermost in."""

    __slots__ = ("_last", "_linked", "_looking", "_write")

    def __init__(self) -> None:
        self._linked = True
        self._last: object = None
        """The innermost stream so far."""
        self._looking: list[Callable[[Piece], None]] = []
        self._write: Callable[[Sequence[Piece]], bool] | None = None

    def made(self, stream: object) -> None:
        """``stream`` is what the caller makes of what it reads, and passes each piece of text on as it is."""
        self._last = stream

    def reads(self, stream: object, *looking: Callable[[Piece], None]) -> None:
        """The maker of the stream before reads this one; ``looking`` are called with each piece."""
        self._linked = self._linked and stream is self._last
        self._looking += looking

    def ends_in(self, write: Callable[[Sequence[Piece]], bool]) -> None:
        """``write`` gives pieces to the client; False, and nothing is done, where that must wait."""
        self._write = write

    @property
    def is_linked(self) -> bool:
        """Whether all stages so far take part: where not, it stays closed."""
        return self._linked

    @property
    def is_open(self) -> bool:
        return self._linked and self._write is not None

    def take(self, pieces: Sequence[Piece]) -> bool:
        """Pass them on; False where they must take the usual way."""
        if self._write is None or not self._write(pieces):
            return False
        for piece in pieces:
            for look in self._looking:
                look(piece)
        return True
