"""What one attempt used: as the model's server reports, or, where it did not, as the gateway counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gateway.deltas import THINKING_FIELDS
from gateway.metering.estimate import CHARACTERS_PER_TOKEN
from gateway.types import Chunk, Json, Usage

MOST_CHARACTERS_PER_TOKEN = 16
"""On average over an answer: four times what is usual. Of a run of spaces or of dashes a token may hold more."""
SHORT = 256
"""Characters of which nothing is proven."""

_THINKING = THINKING_FIELDS - {"signature"}
_NOT_TEXT = frozenset({"role", "id", "type", "index", "embedding", "signature", "data", "reasoning_details"})
"""Fields of a delta whose text no model was paid to write, or that repeat another's."""


class UsageCounter:
    """Counts an attempt's answer as it goes by, all of its choices together."""

    __slots__ = ("_pieces", "_quarters", "_thinks", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        """As last reported by the server."""
        self._pieces = 0
        """Chunks that held a part of the answer; a token each, if not more."""
        self._quarters = 0
        self._thinks = False
        """The answer had thinking in it."""

    def add(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self.usage = chunk.usage
        if delta := chunk.delta:
            if size := _text_size(delta):
                self._pieces += 1
                self._quarters += size
            self._thinks = self._thinks or not _THINKING.isdisjoint(delta)

    def add_text(self, text: str) -> None:
        """As ``add``, for a chunk with nothing but a piece of the answer's text."""
        if text:
            self._pieces += 1
            self._quarters += len(text) if text.isascii() else _weight(text)

    @property
    def counted(self) -> int:
        """Tokens of the answer by its text; for streams at least one a piece."""
        return max(self._pieces, -int(-self._quarters // CHARACTERS_PER_TOKEN))

    @property
    def proven(self) -> int:
        """Tokens that a text of some length proves: with fewer it would be neither words nor code."""
        return (self._quarters - SHORT) // MOST_CHARACTERS_PER_TOKEN

    @property
    def reported(self) -> Usage | None:
        """The server's own figures, where they are all that an answer needs that came to its own end."""
        reported = self.usage
        if reported is None or not reported.prompt or not (reported.completion or not self._pieces):
            return None
        return reported if reported.completion >= self.proven else None

    def of(self, prompt: int, unseen: int, *, whole: bool, thoughts: int = 0) -> tuple[Usage, bool]:
        """What it used, and whether that is estimated. ``whole``: the answer came to its own end.

        ``prompt`` is the estimate of its tokens; ``unseen`` that of an answer of which nothing came, ``thoughts`` that
        of what is thought before the answer begins. Where no thoughts came they may have been kept back.
        """
        counted, reported = self.counted, self.usage
        hidden = thoughts if counted and not self._thinks else 0
        if reported is None or (counted and not reported.prompt and not reported.completion):
            return Usage(prompt, counted + hidden if counted or whole else unseen), True
        if not reported.prompt or (counted and not reported.completion):
            # No prompt is nothing, and no text has no tokens: what the server leaves out is counted.
            return replace(
                reported, prompt=reported.prompt or prompt, completion=reported.completion or counted
            ), True
        if reported.completion < self.proven:
            # It may cover the last piece alone, or a part of the choices.
            return replace(reported, completion=counted + hidden), True
        if whole or counted <= reported.completion:
            return reported, False
        # A server may report usage as it goes along, and be cut before the last.
        return replace(reported, completion=counted + hidden), True


def _text_size(delta: Mapping[str, Json]) -> int:
    """Of all text in a delta: its content, a refusal, thoughts, a call's name and arguments."""
    fields: Iterable[tuple[str, Json]] = delta.items()
    if "reasoning" in delta and "reasoning_content" in delta:  # one text under two names
        fields = ((name, value) for name, value in fields if name != "reasoning")
    return sum(_size(value) for name, value in fields if value and name not in _NOT_TEXT)


def _size(value: Json) -> int:
    if isinstance(value, str):
        return _weight(value)
    if isinstance(value, dict):
        return _text_size(value)
    if isinstance(value, list):
        return sum(map(_size, value))
    return 0


def _weight(text: str) -> int:
    """In characters of English. One of two bytes and more is about a token of its own, as for prompts."""
    if text.isascii():
        return len(text)
    return len(text) + 2 * (len(text.encode("utf-8", "surrogatepass")) - len(text))
