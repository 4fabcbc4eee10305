"""Token ids → text, incrementally: never half a character, never a part of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"
_UNFINISHED = 3
"""Most tokens of an incomplete character, which has at most three bytes."""


class Detokenizer:
    """Turns tokens into text as they come. The pieces, joined, are what decoding all tokens at once gives.

    Only a window of the last tokens is decoded each time. It starts at the tokens emitted last, since what a token
    decodes to may depend on the one before it (a leading space, for one).
    """

    def __init__(self, decode: Callable[[list[int]], str], context: Sequence[int] = ()) -> None:
        """``context``: tokens that the text continues. They must be whole characters."""
        self._decode = decode
        self._window = list(context)
        self._known = len(context)
        """How many tokens of the window were emitted before, and serve as context."""
        self._emitted = decode(self._window) if context else ""
        """The window's text as far as it was emitted."""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that is final now."""
        self._window.extend(tokens)
        text = self._read()
        new = len(self._window) - self._known
        for held in range(min(new, _UNFINISHED + 1)):
            certain = self._decode(self._window[:-held]) if held else text
            if not certain.endswith(_INCOMPLETE):
                return self._emit(certain, len(self._window) - held)
        if new > _UNFINISHED:
            # More tokens than an incomplete character can have: invalid bytes, emitted as such except the last
            # character, which may still be completed.
            piece = text[len(self._emitted) : -1]
            self._emitted += piece
            return piece
        return ""

    def _emit(self, text: str, tokens: int) -> str:
        """``text`` is what the first ``tokens`` of the window decode to."""
        piece = text[len(self._emitted) :]
        if piece:
            del self._window[: self._known]
            self._known = tokens - self._known
            self._emitted = self._decode(self._window[: self._known])
        return piece

    def finish(self) -> str:
        """The rest, once no token can follow."""
        return self._read()[len(self._emitted) :]

    def _read(self) -> str:
        text = self._decode(self._window)
        if self._known and not text.startswith(self._emitted):
            # SentencePiece decodes a run of byte tokens as a whole, and an invalid byte changes all of it. What was
            # emitted cannot be taken back, so the new tokens are decoded by themselves.
            del self._window[: self._known]
            self._known, self._emitted = 0, ""
            text = self._decode(self._window)
        return text


class StopStrings:
    """Passes text on until a stop string appears, which may arrive in any number of pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.found: str | None = None
        """The stop string that has appeared; the longest, where several begin at one position."""

    @property
    def hit(self) -> bool:
        return self.found is not None

    def push(self, text: str) -> str:
        """The text that can be neither a stop string nor the beginning of one."""
        if not self._stops:
            return text
        text = self._held + text
        found = [(place, -len(stop), stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            place, _, self.found = min(found)
            self._held = ""
            return text[:place]
        keep = self._tail(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The rest, once no text can follow."""
        held, self._held = self._held, ""
        return held

    def _tail(self, text: str) -> int:
        """Length of the longest suffix of ``text`` that is a prefix of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


def overlap(text: str, marker: str) -> int:
    """Length of the longest suffix of ``text`` that begins ``marker``, and is not all of it."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0
