"""The form of OpenAI's text answers: an object with its own fields, and choices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.types import Call, Chunk, Json
from gateway.wire.openai.thinking_blocks import ThinkingBlocks


@dataclass(slots=True)
class ChoiceParts:
    """All deltas of one choice, joined."""

    delta: dict[str, Json] = field(default_factory=dict)
    logprobs: dict[str, Json] | None = None
    finish_reason: str | None = None
    stop: str | int | None = None
    thinking: ThinkingBlocks = field(default_factory=ThinkingBlocks)
    more: dict[str, Json] = field(default_factory=dict)
    """Further fields of the choice; the last of each name."""


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
    ours = not isinstance(given, str) or not given or given.startswith(_FOREIGN_ID)
    return {
        "id": prefix + call.request_id if ours else given,
        "created": int(time.time()),
        **{name: value for name, value in envelope.items() if name != "id"},
        "object": kind,
        "model": call.candidate.model if call.candidate else call.model,
    }
