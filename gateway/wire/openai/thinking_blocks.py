"""Signed thinking in OpenAI's dialect, which has no field for it: as ``thinking_blocks``, the name LiteLLM gave them.

A client that sends the assistant's message back with its ``thinking_blocks`` lets a model of Anthropic's go on thinking
where it left off, which tool turns need (https://docs.litellm.ai/docs/reasoning_content).
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.deltas import SEALED_FIELDS
from gateway.types import Json


class ThinkingBlocks:
    """Those of one choice. A signed block is sent whole, once its signature is known."""

    __slots__ = ("_text",)

    def __init__(self) -> None:
        self._text: list[str] = []

    def feed(self, delta: Mapping[str, Json]) -> Mapping[str, Json]:
        """``delta`` as callers get it."""
        if text := delta.get("reasoning_content"):
            self._text.append(text)
        if SEALED_FIELDS.isdisjoint(delta):
            return delta
        blocks: list[Json] = []
        if signature := delta.get("signature"):
            thinking = "".join(self._text)
            blocks.append({"type": "thinking", "thinking": thinking, "signature": signature})
            self._text.clear()
        if hidden := delta.get("redacted_thinking"):
            blocks.append({"type": "redacted_thinking", "data": hidden})
        rest = {name: value for name, value in delta.items() if name not in SEALED_FIELDS}
        return {**rest, "thinking_blocks": blocks} if blocks else rest
