"""What a request to ``/v1/responses`` may hold, and what of it cannot be served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator

from gateway.errors import BadRequest
from gateway.policy.schema.limits import RequestLimits
from gateway.types import Json
from gateway.wire import json_body
from gateway.wire.openai.chat import Lenient

MOST_METADATA, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512
"""Pairs, and characters of a key and of a value (https://platform.openai.com/docs/api-reference/responses/create)."""
BOUNDS = {"input": "messages", "tools": "tools"}
"""Lists in a body, and which of the policy's ``limits`` bounds them."""

_INSTEAD: Mapping[str, str] = {
    "messages": "The Responses API has 'input' for it. Send that, or ask /v1/chat/completions",
    "max_tokens": "The Responses API has 'max_output_tokens' for it",
    "max_completion_tokens": "The Responses API has 'max_output_tokens' for it",
    "response_format": "The Responses API has 'text.format' for it",
    "reasoning_effort": "The Responses API has 'reasoning.effort' for it",
    "verbosity": "The Responses API has 'text.verbosity' for it",
    "functions": "The Responses API has 'tools' for it",
    "n": "The Responses API gives one answer. Ask /v1/chat/completions for several",
    "prompt": "Prompt templates lie with OpenAI, and are not served here. Send the text in 'instructions' and 'input'",
    "conversation": "Conversations are not served here. Send 'previous_response_id', or the whole 'input'",
    "context_management": "Send the conversation to /v1/responses/compact when it has become too long",
    "moderation": "Ask /v1/moderations, or let the gateway's policy scan with its guards",
}
"""Fields of other APIs, or of OpenAI's own service, and what to do instead."""


class Text(Lenient):
    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Lenient):
    effort: str | None = None
    summary: str | None = None


_CONVERSATION: list[Json] = [
    {"required": ["input"], "properties": {"input": {"type": ["string", "array"]}}},
    {"required": ["previous_response_id"], "properties": {"previous_response_id": {"type": "string"}}},
]
"""One of the two must be there, and not null."""


class InputBody(Lenient):
    """What every endpoint takes that reads a conversation."""

    model_config = ConfigDict(json_schema_extra={"anyOf": _CONVERSATION})

    model: Annotated[str, Field(min_length=1)]
    input: str | json_body.Items[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None


class CountBody(InputBody):
    """``/v1/responses/input_tokens``."""

    tools: json_body.Items[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None


class CreateBody(CountBody):
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    metadata: dict[str, str] | None = None
    include: json_body.Items[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None

    @field_validator("metadata")
    @classmethod
    def _bounded(cls, pairs: dict[str, str] | None) -> dict[str, str] | None:
        given = pairs or {}
        if len(given) > MOST_METADATA:
            raise ValueError(f"at most {MOST_METADATA} pairs are kept")
        if any(len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE for key, value in given.items()):
            raise ValueError(
                f"keys have at most {LONGEST_KEY} characters, and values at most {LONGEST_VALUE}"
            )
        return pairs


def read_raw(data: bytes, limits: RequestLimits) -> dict[str, Json]:
    """The JSON in a body, without fields that cannot be served. Raises ``BadRequest``."""
    raw = json_body.read_json(data, limits, bounds=BOUNDS, conversation="input")
    for name, instead in _INSTEAD.items():
        if raw.get(name) is not None:
            raise BadRequest(
                f"Unsupported parameter: '{name}'. {instead}.", param=name, code="unsupported_parameter"
            )
    tools = raw.get("tools")
    if isinstance(tools, list):
        grouped = (tool.get("tools") for tool in tools if isinstance(tool, dict))
        count = len(tools) + sum(len(group) for group in grouped if isinstance(group, list))
        if count > limits.tools:
            raise json_body.too_long("tools", count, limits.tools)
    return raw
