"""How much of a prompt an engine says that it had cached, at the end of an answer that is only looked on at."""

from __future__ import annotations

import re

TAIL = 4096
"""Bytes of an answer's end that are kept: ``usage`` follows the text, in a body and in a stream."""
# Quotation marks within texts have a backslash before them: what a model writes is not taken for usage.
_PROMPT = re.compile(rb'(?<!\\)"prompt_tokens"\s*:\s*(\d{1,12})\b')
_CACHED = re.compile(rb'(?<!\\)"cached_tokens"\s*:\s*(\d{1,12})\b')


class AnswerUsage:
    """Of an answer of OpenAI's form; of others, and of compressed ones, nothing is known."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def add(self, piece: bytes) -> None:
        self._tail = piece[-TAIL:] if len(piece) >= TAIL else (self._tail + piece)[-TAIL:]

    def cached(self) -> float | None:
        """The share of the prompt; None where the answer does not say how long the prompt was."""
        prompts = _PROMPT.findall(self._tail)
        if not prompts or not (prompt := int(prompts[-1])):
            return None
        cached = _CACHED.findall(self._tail)
        return min(1.0, int(cached[-1]) / prompt) if cached else 0.0
