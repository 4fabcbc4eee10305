"""The form of OpenAI's text answers: an object with its own fields, and choices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.deltas import SEALED_FIELDS, join_delta, join_lists, joined
from gateway.types import Call, Chunk, Json
from gateway.wire.openai.thinking_blocks import ThinkingBlocks


class ChoiceParts:
    """All chunks of one choice, joined. Of a single one its own delta is kept, as nobody changes it."""

    __slots__ = ("_joined", "_thinking", "delta", "finish_reason", "logprobs", "more", "stop")

    def __init__(self, first: Chunk) -> None:
        delta: Mapping[str, Json] = first.delta or {}
        self._joined: dict[str, Json]
        self._thinking: ThinkingBlocks | None = None
        """None while ``delta`` is the first chunk's."""
        self.delta = delta
        self.logprobs: Mapping[str, Json] | None = first.logprobs or None
        self.finish_reason = first.finish_reason or None
        self.stop = first.stop if self.finish_reason is not None else None
        self.more = first.choice
        """Further fields of the choice; the last of each name."""
        if not _JOINED.isdisjoint(delta):
            self._join(delta)

    def add(self, chunk: Chunk) -> None:
        if self._thinking is None:
            self._join(self.delta)
        if chunk.delta:
            self._join(chunk.delta)
        if chunk.logprobs:
            logprobs: dict[str, Json] = {}
            join_lists(logprobs, self.logprobs or {})
            join_lists(logprobs, chunk.logprobs)
            self.logprobs = logprobs
        if chunk.choice:
            self.more = {**(self.more or {}), **chunk.choice}
        if chunk.finish_reason:
            self.finish_reason, self.stop = chunk.finish_reason, chunk.stop

    def _join(self, delta: Mapping[str, Json]) -> None:
        if self._thinking is None:
            self._thinking, self._joined = ThinkingBlocks(), {}
            self.delta = self._joined
        join_delta(self._joined, self._thinking.feed(delta))

    def finish(self) -> None:
        """No more will come."""
        if self._thinking is not None:
            self.delta = joined(self.delta)


_JOINED = frozenset({"tool_calls", "reasoning_content"}) | SEALED_FIELDS
"""Fields of a delta that are not written as they come."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How one of OpenAI's text APIs writes an answer."""

    object: str
    chunk_object: str
    id_prefix: str
    body_choice: Callable[[int, ChoiceParts], dict[str, Json]]
    event_choice: Callable[[Chunk], dict[str, Json]]


_FOREIGN_ID = "msg_"
"""How Anthropic's ids begin. Other servers' are kept: a caller can ask those servers by them."""


def envelope_fields(envelope: Mapping[str, Json], kind: str, prefix: str, call: Call) -> dict[str, Json]:
    """An answer's fields beside choices and usage; ``kind`` is its ``object``."""
    given = envelope.get("id")
    if not isinstance(given, str) or not given or given.startswith(_FOREIGN_ID):
        given = prefix + call.request_id
    fields = {
        "id": given,
        "created": int(time.time()),
        **envelope,
        "object": kind,
        "model": call.candidate.model if call.candidate else call.model,
    }
    fields["id"] = given
    return fields
