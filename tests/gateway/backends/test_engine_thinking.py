"""What the bundled engine is told about thinking, whatever the caller's dialect."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.backends.engine_thinking import for_engine
from gateway.types import ChatRequest
from gateway.wire.anthropic.body_to_request import read_request as read_anthropic
from gateway.wire.gemini.body_to_request import read_request as read_gemini
from tests.fakes import FakeUpstream, completion, reply
from tests.gateway.backends.test_fitting import ask, calling

SAID = {"type": "text", "text": "Hello"}


def anthropic(*thoughts: Any, **more: Any) -> ChatRequest:
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [*thoughts, SAID]},
        {"role": "user", "content": "Why?"},
    ]
    return read_anthropic(orjson.dumps({"model": "m", "max_tokens": 4000, "messages": turns, **more}))


def gemini(config: Any) -> ChatRequest:
    body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "generationConfig": config}
    return read_gemini(orjson.dumps(body), model="m", stream=False)


def test_anthropics_budget_and_thoughts() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    thoughts = [{"type": "thinking", "thinking": text, "signature": ""} for text in ("Hm.", "So.")]
    asked = for_engine(anthropic(*thoughts, thinking=thinking))
    assert asked.params["thinking"] == thinking
    assert (asked.messages or ())[1] == {
        "role": "assistant",
        "content": "Hello",
        "reasoning_content": "Hm.\n\nSo.",
    }


def test_hidden_thoughts_are_for_their_model_alone() -> None:
    asked = for_engine(anthropic({"type": "redacted_thinking", "data": "c2Vj"}))
    assert (asked.messages or ())[1].keys() == {"role", "content"}
    assert "thinking" not in asked.params


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"thinkingConfig": {"thinkingBudget": 64}}, {"type": "enabled", "budget_tokens": 64}),
        ({"thinkingConfig": {"thinkingBudget": 0}}, {"type": "disabled"}),
        ({"thinkingConfig": {"thinkingBudget": -1}}, None),
        ({"thinkingConfig": {"includeThoughts": True}}, None),
        ({}, None),
    ],
)
def test_geminis_budget(config: Any, expected: Any) -> None:
    assert for_engine(gemini(config)).params.get("thinking") == expected


@pytest.mark.anyio
@pytest.mark.parametrize("hints", [True, False], ids=["engine", "other"])
async def test_the_engine_is_told_and_other_servers_are_not(upstream: FakeUpstream, hints: bool) -> None:
    upstream.scripts = [reply(completion())]
    call = calling({})
    call.request = gemini({"thinkingConfig": {"thinkingBudget": 64}})
    (sent,) = await ask(upstream, call, hints=hints)
    assert sent.get("thinking") == ({"type": "enabled", "budget_tokens": 64} if hints else None)
