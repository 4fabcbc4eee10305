"""A body as the SDKs type it, strictly, and with all that the published specifications demand.

The SDKs' models are made from those specifications, but take a field that may be null for one that may be missing;
``REQUIRED`` names those that must be there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from anthropic.types import Message, MessageDeltaUsage, TextBlock, ThinkingBlock, ToolUseBlock, Usage
from anthropic.types.raw_message_delta_event import Delta as MessageDelta
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.completion_choice import CompletionChoice
from pydantic import BaseModel, TypeAdapter, ValidationError

REQUIRED: Mapping[type[BaseModel], frozenset[str]] = {
    ChatCompletionMessage: frozenset({"role", "content", "refusal"}),
    Choice: frozenset({"finish_reason", "index", "message", "logprobs"}),
    ChoiceLogprobs: frozenset({"content", "refusal"}),
    ChunkChoice: frozenset({"delta", "finish_reason", "index"}),
    CompletionChoice: frozenset({"finish_reason", "index", "logprobs", "text"}),
    Message: frozenset(
        {
            "id",
            "type",
            "role",
            "content",
            "model",
            "stop_reason",
            "stop_sequence",
            "stop_details",
            "usage",
            "container",
        }
    ),
    MessageDelta: frozenset({"container", "stop_details", "stop_reason", "stop_sequence"}),
    Usage: frozenset(
        {
            "cache_creation",
            "cache_creation_input_tokens",
            "cache_read_input_tokens",
            "inference_geo",
            "input_tokens",
            "output_tokens",
            "output_tokens_details",
            "server_tool_use",
            "service_tier",
        }
    ),
    MessageDeltaUsage: frozenset(
        {
            "cache_creation_input_tokens",
            "cache_read_input_tokens",
            "input_tokens",
            "output_tokens",
            "output_tokens_details",
            "server_tool_use",
        }
    ),
    TextBlock: frozenset({"citations", "text", "type"}),
    ThinkingBlock: frozenset({"signature", "thinking", "type"}),
    ToolUseBlock: frozenset({"caller", "id", "input", "name", "type"}),
}


class Wrong(Exception):
    """An answer is not as published."""


def fits(model: Any, value: Any) -> Any:
    """``value`` as ``model``, strictly. Raises ``Wrong`` for a wrong type, and for what is missing."""
    try:
        read = TypeAdapter(model).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:4])
        raise Wrong(told) from None
    if missing := list(_missing(read, "")):
        raise Wrong(f"missing: {', '.join(missing)}")
    return read


def _missing(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, BaseModel):
        for name in sorted(REQUIRED.get(type(value), frozenset()) - value.model_fields_set):
            yield f"{where}{name}"
        for name, inner in value:
            yield from _missing(inner, f"{where}{name}.")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _missing(inner, f"{where}{i}.")
