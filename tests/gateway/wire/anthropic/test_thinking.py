"""The thinking of Anthropic's callers, for providers that are not Anthropic and have models that think."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.types import ChatRequest
from gateway.wire.anthropic.body_to_request import read_request
from gateway.wire.anthropic.thinking import with_thinking
from gateway.wire.bedrock import request_to_body as bedrock
from gateway.wire.gemini import request_to_body as gemini

SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
HIDDEN = {"type": "redacted_thinking", "data": "c2VjcmV0"}
UNSIGNED = {"type": "thinking", "thinking": "Gemini's own.", "signature": ""}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "1"}
ENABLED = {"type": "enabled", "budget_tokens": 1024}


def asked(*turns: Any, **more: Any) -> ChatRequest:
    messages = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(turns)]
    return read_request(orjson.dumps({"model": "m", "max_tokens": 4000, "messages": messages, **more}))


def test_who_does_not_think_is_not_told_of_it() -> None:
    request = asked("Hi", [SIGNED, {"type": "text", "text": "Hello"}], "Why?", thinking=ENABLED)
    assert "thinking" not in request.params
    assert "thinking_blocks" not in (request.messages or ())[1]


@pytest.mark.parametrize(
    ("thinking", "budget"), [(ENABLED, 1024), ({"type": "disabled"}, 0), ({"type": "adaptive"}, None)]
)
def test_gemini_is_asked_to_think(thinking: Any, budget: int | None) -> None:
    body = gemini.write_request(with_thinking(asked("Hi", thinking=thinking)), "gemini-2.5-flash")
    config = body["generationConfig"]["thinkingConfig"]
    assert (config.get("thinkingBudget"), config.get("includeThoughts", False)) == (budget, budget != 0)


def test_bedrock_gets_thoughts_back_where_they_were() -> None:
    request = asked(
        "Hi",
        [SIGNED],  # a turn of thoughts alone becomes no message
        "Go on",
        [HIDDEN, SIGNED, CALL],
        [RESULT],
        "plain",
        "And?",
        [UNSIGNED, {"type": "text", "text": "Done"}],
        "Why?",
        thinking=ENABLED,
        tools=[{"name": "f", "input_schema": {"type": "object"}}],
    )
    body = bedrock.write_request(with_thinking(request), "eu.anthropic.claude-sonnet-4-5-20250929-v1:0")
    assert body["additionalModelRequestFields"] == {"thinking": ENABLED}
    answers = [message["content"] for message in body["messages"] if message["role"] == "assistant"]
    assert answers == [
        [
            {"reasoningContent": {"redactedContent": "c2VjcmV0"}},
            {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
            {"toolUse": {"toolUseId": "call_1", "name": "f", "input": {}}},
        ],
        [{"text": "plain"}],
        [{"text": "Done"}],
    ]
