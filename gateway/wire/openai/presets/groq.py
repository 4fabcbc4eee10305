"""Groq (https://console.groq.com/docs/openai, https://console.groq.com/docs/api-reference)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.types import Json
from gateway.wire.openai.presets.preset import Message, Preset, only

_FIELDS = {
    "system": frozenset({"role", "content"}),
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", "tool_calls", "function_call", "reasoning"}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
}
"""``name`` of a message, for one, is answered with 400."""


def _messages(messages: Sequence[Message]) -> tuple[list[Message], set[str]]:
    return only(_FIELDS, [_thinking(message) for message in messages])


def _thinking(message: Message) -> Message:
    """Under the name that Groq gives it in its answers."""
    thought = message.get("reasoning_content")
    if message.get("role") != "assistant" or thought is None:
        return message
    rest = {name: value for name, value in message.items() if name != "reasoning_content"}
    return {**rest, "reasoning": message.get("reasoning") or thought}


def _answer(raw: Mapping[str, Json]) -> Mapping[str, Json]:
    """A stream's usage is beside it."""
    own = raw.get("x_groq")
    if raw.get("usage") is None and isinstance(own, dict) and own.get("usage") is not None:
        return {**raw, "usage": own["usage"]}
    return raw


GROQ = Preset(
    name="Groq",
    takes=frozenset(
        {
            *("frequency_penalty", "function_call", "functions", "parallel_tool_calls", "presence_penalty"),
            *("reasoning_effort", "seed", "service_tier", "user"),
        }
    ),
    cap="max_completion_tokens",
    apis={
        "speech": "audio/speech",
        "transcription": "audio/transcriptions",
        "translation": "audio/translations",
    },
    values={"service_tier": {"default": "on_demand"}},
    messages=_messages,
    answer=_answer,
)
