"""What one attempt used: as the model's server reports, or, where it did not, as the gateway counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gateway.deltas import THINKING_FIELDS
from gateway.metering.dense_text import dense_tokens
from gateway.metering.estimate import CHARACTERS_PER_TOKEN
from gateway.types import Chunk, Json, Usage

MOST_CHARACTERS_PER_TOKEN = 16
"""On average over an answer: four times what is usual. Of a run of spaces or of dashes a token may hold more."""
SHORT = 256
"""Characters of which nothing is proven."""
PIECE = 12
"""Characters of a piece that may well be one token."""
MARKS = 8
"""Tokens that end a text, or stand around it, and are not in it."""

_THINKING = THINKING_FIELDS - {"signature"}
_NOT_TEXT = frozenset({"role", "id", "type", "index", "embedding", "signature", "data", "reasoning_details"})
"""Fields of a delta whose text no model was paid to write, or that repeat another's."""


class UsageCounter:
    """Counts an attempt's answer as it goes by, all of its choices together."""

    usage: Usage | None = None
    """As last reported by the server."""
    _pieces = 0
    """Tokens, if not more: one for each chunk that held a part of the answer; those of long texts at least."""
    _characters = 0
    _beyond = 0
    """Bytes in UTF-8 beyond one a character."""
    _thinks = False
    """The answer had thinking in it."""
    _is_full = False
    """It, or one of several, ended at its cap."""

    def add(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.finish_reason == "length":
            self._is_full = True
        if delta := chunk.delta:
            text = delta.get("content")
            if text.__class__ is str and (len(delta) == 1 or (len(delta) == 2 and "role" in delta)):
                if text:
                    self._pieces += self._measured(text) or 1
                return
            # What a whole answer has in several texts may be one token together where it comes in pieces.
            if texts := [*_texts(delta)]:
                self._pieces += max(1, sum(map(self._measured, texts)))
            self._thinks = self._thinks or not _THINKING.isdisjoint(delta)

    def add_text(self, text: str) -> None:
        """As ``add``, for a chunk with nothing but a piece of the answer's text."""
        if text:
            self._pieces += self._measured(text) or 1

    def add_texts(self, texts: Sequence[str]) -> None:
        """As ``add``, for more pieces of a text that is added to, none of which is empty."""
        if len(texts) > 1 and max(map(len, texts)) <= PIECE:
            self._pieces += len(texts)
            self._measured("".join(texts), are_pieces=True)
            return
        for text in texts:
            self._pieces += self._measured(text) or 1

    def _measured(self, text: str, *, are_pieces: bool = False) -> int:
        """Tokens that there are at least, where it is long enough to be several, and not one of each of its pieces."""
        size = len(text)
        self._characters += size
        if not text.isascii():
            self._beyond += len(text.encode("utf-8", "surrogatepass")) - size
        return dense_tokens(text) if size > PIECE and not are_pieces else 0

    @property
    def counted(self) -> int:
        """Tokens of the answer by its text; for streams at least one a piece."""
        # One of two bytes and more is about a token of its own, as for prompts.
        weight = self._characters + 2 * self._beyond
        return max(self._pieces, -int(-weight // CHARACTERS_PER_TOKEN))

    @property
    def proven(self) -> int:
        """Tokens that a text of some length proves: with fewer it would be neither words nor code."""
        return (self._characters + 2 * self._beyond - SHORT) // MOST_CHARACTERS_PER_TOKEN

    @property
    def most(self) -> int:
        """Tokens that its text can be at most: each stands for a byte or more."""
        return self._characters + self._beyond + MARKS

    @property
    def reported(self) -> Usage | None:
        """The server's own figures, where they are all that an answer needs that came to its own end."""
        reported = self.usage
        if reported is None or not reported.prompt or not (reported.completion or not self._pieces):
            return None
        return reported if reported.completion >= self.proven else None

    def of(
        self,
        prompt: int,
        unseen: int,
        *,
        whole: bool,
        thoughts: int = 0,
        most: int | None = None,
        left_out: int = 0,
    ) -> tuple[Usage, bool]:
        """What it used, and whether that is estimated. ``whole``: the answer came to its own end.

        ``prompt`` is the estimate of its tokens; ``unseen`` that of an answer of which nothing came, ``thoughts`` that
        of what is thought before the answer begins. Where no thoughts came they may have been kept back. With ``most``,
        tokens that limits hold for the answer, what the server leaves out is the most that it can be instead, with
        ``left_out`` tokens that were made and are in no text.
        """
        counted, reported = self.counted, self.usage
        hidden = thoughts if counted and not self._thinks else 0
        said = counted + hidden
        if most is not None and self._is_full:
            said = max(counted, most)
        elif most is not None and (counted or whole):
            said = max(counted, min(self.most + (0 if self._thinks else thoughts) + left_out, most))
        if reported is None or (counted and not reported.prompt and not reported.completion):
            return Usage(prompt, said if counted or whole else unseen), True
        if not reported.prompt or (counted and not reported.completion):
            # No prompt is nothing, and no text has no tokens: what the server leaves out is counted.
            return replace(
                reported,
                prompt=reported.prompt or prompt,
                completion=reported.completion or (counted if most is None else said),
            ), True
        if reported.completion < self.proven:
            # It may cover the last piece alone, or a part of the choices.
            return replace(reported, completion=said), True
        if whole or counted <= reported.completion:
            return reported, False
        # A server may report usage as it goes along, and be cut before the last.
        return replace(reported, completion=said), True


def _texts(delta: Mapping[str, Json]) -> Iterator[str]:
    """All text in a delta: its content, a refusal, thoughts, a call's name and arguments."""
    twice = "reasoning" in delta and "reasoning_content" in delta  # one text under two names
    for name, value in delta.items():
        if value and name not in _NOT_TEXT and not (twice and name == "reasoning"):
            yield from _texts_in(value)


def _texts_in(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, dict):
        yield from _texts(value)
    elif isinstance(value, list):
        for one in value:
            yield from _texts_in(one)
