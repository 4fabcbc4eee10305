"""Where a grammar with a trigger begins to hold: looked for in an answer's text while that is free.

A token costs microseconds, and none of it is masked. So a sign is one that no token goes on from to something that the
grammar would have forbidden: ``<tool_call`` of ``<tool_call>``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import LLTokenizer

from engine.core.sampling_params import Trigger

_REACH = 64
"""Bytes that a sign may have."""
_SPACES = re.compile(rb"\s*")


@dataclass(frozen=True, slots=True)
class Begin:
    """Where in an answer a grammar begins."""

    tokens: int = 0
    """The answer's tokens before it,"""
    text: bytes = b""
    """and what the last of these has of it."""


WHOLE = Begin()


class Watch:
    """Of one request."""

    def __init__(self, trigger: Trigger, tokenizer: LLTokenizer, end: int) -> None:
        """``end``: the first id that is no token's."""
        self._sign = re.compile(trigger.sign.encode())
        self._opening = re.compile(trigger.opening.encode()) if trigger.opening else None
        self._thought = trigger.thought
        self._tokenizer, self._end = tokenizer, end
        self._text = bytearray()
        """The answer's, special tokens by their names."""
        self._ends: list[int] = []
        """Where each token ends in it."""
        self._answer = None if trigger.thought else 0
        """Where what counts begins in it, once that is known."""

    def read(self, history: Sequence[int], prompt_length: int) -> Begin | None:
        """Goes on with the tokens that are new in ``history``, which begins with the prompt."""
        return self._look(history[prompt_length + len(self._ends) :])

    def beyond(self, draft_tokens: Sequence[int]) -> Begin | None:
        """Whether the trigger is met with ``draft_tokens`` behind what was read."""
        length, count, answer = len(self._text), len(self._ends), self._answer
        begin = self._look(draft_tokens)
        del self._text[length:], self._ends[count:]
        self._answer = answer
        return begin

    def _look(self, tokens: Sequence[int]) -> Begin | None:
        known = len(self._text)
        for token in tokens:
            if token < self._end:
                self._text += self._tokenizer.decode_bytes([token])
            self._ends.append(len(self._text))
        if self._answer is None:
            self._answer = self._behind_thought(known)
            if self._answer is None:
                return None
        place = self._place(max(self._answer, known - _REACH))
        return None if place is None else self._begin(place)

    def _place(self, start: int) -> int | None:
        """Where what the grammar reads begins. ``start``: where a sign may begin at the earliest."""
        assert self._answer is not None
        if self._opening is not None and (found := self._opening.match(self._text, self._answer)):
            return found.end() - 1
        sign = self._sign.search(self._text, start)
        return sign.start() if sign else None

    def _begin(self, place: int) -> Begin:
        token = bisect_right(self._ends, place)
        if place == (self._ends[token - 1] if token else 0):
            return Begin(token)
        return Begin(token + 1, bytes(self._text[place : self._ends[token]]))

    def _behind_thought(self, known: int) -> int | None:
        """``known``: up to where the text was looked through before."""
        assert self._thought is not None
        begin, end = (marker.encode() for marker in self._thought)
        spaces = _SPACES.match(self._text)
        start = spaces.end() if spaces else 0
        if not self._text.startswith(begin, start):
            return None if begin.startswith(self._text[start : start + len(begin)]) else 0
        place = self._text.find(end, max(start + len(begin), known - len(end)))
        return None if place < 0 else place + len(end)
