"""Anthropic's ``stop_reason`` and OpenAI's ``finish_reason``."""

from __future__ import annotations

from collections.abc import Mapping

OPENAI: Mapping[str, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""OpenAI's ``finish_reason`` for each ``stop_reason``."""

ANTHROPIC: Mapping[str, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""And the other way."""


def to_anthropic(finish_reason: str | None, *, has_tools: bool, stop_sequence: str | None = None) -> str:
    """The ``stop_reason`` for an answer. Servers that say ``stop`` after tool calls mean ``tool_calls``."""
    reason = ANTHROPIC.get(finish_reason or "stop", "end_turn")
    if reason != "end_turn":
        return reason
    if has_tools:
        return "tool_use"
    return "end_turn" if stop_sequence is None else "stop_sequence"
