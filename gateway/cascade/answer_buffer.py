"""Buffers a step's answer until it is known whether it is good enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from gateway.types import ChatRequest, Chunk

MAX_BYTES = 256 * 2**10
"""Of the answer, as JSON. A longer one is no refusal, and is passed on unchecked."""


class AnswerBuffer:
    """The chunks of one answer, in order."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._bytes = 0

    def add(self, chunk: Chunk) -> bool:
        """Whether the buffer may grow."""
        self.chunks.append(chunk)
        self._bytes += len(orjson.dumps((chunk.delta, chunk.logprobs)))
        return self._bytes <= MAX_BYTES


def asks_logprobs(request: ChatRequest) -> bool:
    """Whether the caller wants to see log-probabilities."""
    value = request.params.get("logprobs")
    # Completions take a number of alternatives, where 0 means the chosen tokens alone.
    return value is not None and value is not False


LOGPROBS = frozenset({"logprobs"})


def with_logprobs(request: ChatRequest) -> ChatRequest:
    """``request``, asking for the log-probability of each token of the answer: ``LOGPROBS`` is all that is added."""
    wanted: Mapping[str, Any] = {"logprobs": True if request.messages is not None else 1}
    return replace(request, params={**request.params, **wanted})
