"""The form of OpenAI's text answers: an object with its own fields, and choices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.deltas import SEALED_FIELDS, join_delta, join_lists, joined
from gateway.types import Call, Chunk, Json
from gateway.wire.openai.thinking_blocks import ThinkingBlocks


class Choice(Protocol):
    """All of one choice: its only chunk, as it came, or ``JoinedChoice``."""

    @property
    def delta(self) -> Mapping[str, Json] | None: ...
    @property
    def logprobs(self) -> Mapping[str, Json] | None: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def stop(self) -> str | int | None: ...
    @property
    def choice(self) -> Mapping[str, Json] | None: ...


class JoinedChoice:
    """All chunks of one choice, joined."""

    __slots__ = ("_joined", "_thinking", "choice", "finish_reason", "logprobs", "stop")

    def __init__(self) -> None:
        self._thinking = ThinkingBlocks()
        self._joined: dict[str, Json] = {}
        self.logprobs: Mapping[str, Json] | None = None
        self.finish_reason: str | None = None
        self.stop: str | int | None = None
        self.choice: Mapping[str, Json] | None = None
        """Further fields of the choice; the last of each name."""

    def add(self, chunk: Chunk) -> None:
        if chunk.delta:
            join_delta(self._joined, self._thinking.feed(chunk.delta))
        if chunk.logprobs:
            logprobs: dict[str, Json] = {}
            join_lists(logprobs, self.logprobs or {})
            join_lists(logprobs, chunk.logprobs)
            self.logprobs = logprobs
        if chunk.choice:
            self.choice = {**(self.choice or {}), **chunk.choice}
        if chunk.finish_reason:
            self.finish_reason, self.stop = chunk.finish_reason, chunk.stop

    @property
    def delta(self) -> Mapping[str, Json]:
        return joined(self._joined)


JOINED = frozenset({"tool_calls", "reasoning_content"}) | SEALED_FIELDS
"""Fields of a delta that are not written as they come."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How one of OpenAI's text APIs writes an answer."""

    object: str
    chunk_object: str
    id_prefix: str
    body_choice: Callable[[int, Choice], dict[str, Json]]
    event_choice: Callable[[Chunk], dict[str, Json]]


_FOREIGN_ID = "msg_"
"""How Anthropic's ids begin. Other servers' are kept: a caller can ask those servers by them."""


def envelope_fields(envelope: Mapping[str, Json], kind: str, prefix: str, call: Call) -> dict[str, Json]:
    """An answer's fields beside choices and usage; ``kind`` is its ``object``."""
    fields: dict[str, Json] = {"id": "", "created": 0, **envelope, "object": kind}
    given = fields["id"]
    if type(given) is not str or not given or given.startswith(_FOREIGN_ID):
        fields["id"] = prefix + call.request_id
    if "created" not in envelope:
        fields["created"] = int(time.time())
    fields["model"] = call.candidate.model if call.candidate else call.model
    return fields
