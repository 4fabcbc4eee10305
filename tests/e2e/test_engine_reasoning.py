"""A model that reasons, in the bundled engine behind the gateway: each dialect has its thoughts in its own place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.e2e.gateways import serving
from tests.engine.live import EngineServer
from tests.engine.server.test_reasoning_api import TEMPLATE
from tests.engine.server.test_tools_api import write_tool_model

KEY = "tg-" + "k" * 40
BUDGET = 12
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ASKED = "Which city?"
ANSWER = {"city": "Paris"}
MARKS = ('"reasoning_content":"', '"type":"reasoning"', '"type":"thinking"', '"thought":true', "think>")
"""Of thoughts in an answer."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("reasoning")
    model = write_tool_model(folder / "tiny", TEMPLATE, "<think>", "</think>", "<tool_call>", "</tool_call>")
    with EngineServer(model, "--kv-cache-blocks", "400", log=folder / "log") as engine:
        policy = {
            "version": 1,
            "tenants": {"acme": {}},
            "keys": [{"id": "key", "sha256": sha256(KEY.encode()).hexdigest(), "tenant": "acme"}],
            "backends": {"own": {"kind": "engine", "base_url": engine.url}},
            "models": {"tiny": {"targets": [{"backend": "own", "model": "tiny"}]}},
        }
        with serving(folder / "gateway", policy) as url:
            yield url


def test_chat_completions(gateway: str) -> None:
    client = OpenAI(base_url=f"{gateway}/v1", api_key=KEY, max_retries=0)
    body: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": ASKED}],
        "seed": 3,
        "max_tokens": 300,
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}},
        "extra_body": {"max_reasoning_tokens": BUDGET},
    }
    whole = client.chat.completions.create(**body)
    message = whole.choices[0].message
    assert json.loads(message.content or "") == ANSWER
    thoughts = message.model_extra["reasoning_content"]  # type: ignore[index]
    assert thoughts and "think>" not in thoughts
    assert whole.usage and whole.usage.completion_tokens_details
    assert whole.usage.completion_tokens_details.reasoning_tokens == BUDGET
    streamed = {"reasoning_content": "", "content": ""}
    for chunk in client.chat.completions.create(**body, stream=True):
        for choice in chunk.choices:
            for name, text in choice.delta.model_dump(exclude_none=True).items():
                if name in streamed:
                    streamed[name] += text
    assert streamed == {"reasoning_content": thoughts, "content": message.content}


def test_responses(gateway: str) -> None:
    client = OpenAI(base_url=f"{gateway}/v1", api_key=KEY, max_retries=0)
    body: dict[str, Any] = {
        "model": "tiny",
        "input": ASKED,
        "max_output_tokens": 300,
        "text": {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}},
        "extra_body": {"max_reasoning_tokens": BUDGET, "seed": 3},
    }
    whole = client.responses.create(**body)
    assert json.loads(whole.output_text) == ANSWER
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    thoughts = whole.output[0].content[0].text if whole.output[0].content else whole.output[0].summary[0].text  # type: ignore[union-attr]
    assert thoughts and "think>" not in thoughts
    assert whole.usage and whole.usage.output_tokens_details.reasoning_tokens == BUDGET
    events = list(client.responses.create(**body, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    told = "".join(
        event.delta
        for event in events
        if event.type in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
    )
    assert (json.loads(text), told) == (ANSWER, thoughts)


def test_messages(gateway: str) -> None:
    client = Anthropic(base_url=gateway, api_key=KEY, max_retries=0)
    body: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": ASKED}],
        "max_tokens": 300,
        "thinking": {"type": "enabled", "budget_tokens": BUDGET},
        "extra_body": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    }
    whole = client.messages.create(**body)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    thinking, text = whole.content
    assert thinking.thinking and "think>" not in thinking.thinking  # type: ignore[union-attr]
    assert json.loads(text.text) == ANSWER  # type: ignore[union-attr]
    with client.messages.stream(**body) as stream:
        kinds = [event.delta.type for event in stream if event.type == "content_block_delta"]
        final = stream.get_final_message()
    assert {"thinking_delta", "text_delta"} <= set(kinds)
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert json.loads(final.content[1].text) == ANSWER  # type: ignore[union-attr]


@pytest.mark.parametrize("streamed", [False, True])
def test_generate_content(gateway: str, streamed: bool) -> None:
    body = {
        "contents": [{"role": "user", "parts": [{"text": ASKED}]}],
        "generationConfig": {
            "maxOutputTokens": 300,
            "seed": 3,
            "thinkingConfig": {"thinkingBudget": BUDGET, "includeThoughts": True},
            "responseMimeType": "application/json",
            "responseJsonSchema": SCHEMA,
        },
    }
    way = "streamGenerateContent?alt=sse" if streamed else "generateContent"
    answer = httpx.post(
        f"{gateway}/v1beta/models/tiny:{way}",
        json=body,
        headers={"x-goog-api-key": KEY},
        timeout=60,
        verify=False,
    )
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    parts = lines if streamed else [answer.text]
    thoughts, text, usage = "", "", {}
    for one in map(json.loads, parts):
        usage = one.get("usageMetadata") or usage
        for candidate in one.get("candidates", ()):
            for part in candidate.get("content", {}).get("parts", ()):
                if part.get("thought"):
                    thoughts += part["text"]
                else:
                    text += part.get("text", "")
    assert json.loads(text) == ANSWER
    assert thoughts and "think>" not in thoughts
    assert usage["thoughtsTokenCount"] == BUDGET


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": ASKED}], "reasoning_effort": "none"},
        ),
        ("/v1/responses", {"input": ASKED, "reasoning": {"effort": "none"}}),
        (
            "/v1/messages",
            {
                "messages": [{"role": "user", "content": ASKED}],
                "max_tokens": 20,
                "thinking": {"type": "disabled"},
            },
        ),
        (
            "/v1beta/models/tiny:generateContent",
            {
                "contents": [{"parts": [{"text": ASKED}]}],
                "generationConfig": {"maxOutputTokens": 20, "thinkingConfig": {"thinkingBudget": 0}},
            },
        ),
    ],
    ids=["chat", "responses", "messages", "gemini"],
)
def test_reasoning_is_switched_off_in_each(gateway: str, path: str, body: dict[str, Any]) -> None:
    limits = (
        {}
        if "max_tokens" in body or "generationConfig" in body
        else {"/v1/responses": {"max_output_tokens": 20}}.get(path, {"max_tokens": 20})
    )
    answer = httpx.post(
        f"{gateway}{path}",
        json={**({} if "v1beta" in path else {"model": "tiny"}), **body, **limits},
        headers={"authorization": f"Bearer {KEY}", "x-goog-api-key": KEY},
        timeout=60,
        verify=False,
    )
    assert answer.status_code == 200, answer.text
    assert not [mark for mark in MARKS if mark in answer.text.replace(" ", "")]
