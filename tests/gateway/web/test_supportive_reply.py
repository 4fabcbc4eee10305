"""The supportive reply as the official SDKs read it, from a real gateway with the shipped fast check."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel

from gateway.guards.requests.support import HEADER, MESSAGE
from tests.serving import KEY, Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

DESPAIR = "I want to die, I am going to kill myself."
TOLD = "toxicity; action=support; category=self_harm"
ASK: Any = {"model": "fake", "messages": [{"role": "user", "content": DESPAIR}]}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    rules = a_policy("http://127.0.0.1:9/v1")
    rules["guards"] = {"toxicity": {"checks": ["fast"]}}
    rules["caches"] = {"exact": {}}
    async with serving(tmp_path / "policies", rules) as running:
        yield running


@pytest.fixture
async def openai_sdk(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx.AsyncClient(trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0, http_client=http
    ) as sdk:
        yield sdk


@pytest.fixture
async def anthropic_sdk(gateway: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as sdk:
        yield sdk


async def test_chat(openai_sdk: openai.AsyncOpenAI, gateway: Gateway) -> None:
    raw = await openai_sdk.chat.completions.with_raw_response.create(**ASK, n=2)
    answer = raw.parse()
    assert [choice.message.content for choice in answer.choices] == [MESSAGE] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 2
    assert answer.usage is not None
    assert answer.usage.total_tokens == 0
    assert raw.headers[HEADER] == TOLD
    receipt = (await gateway.http.get(f"/v1/requests/{raw.headers['x-request-id']}")).json()
    assert receipt["stages"]["guard_input"]["guards"]["toxicity"]["action"] == "support"
    assert receipt["stages"]["quota"]["used_tokens"] == 0
    assert "route" not in receipt["stages"]
    assert DESPAIR not in str(receipt)


async def test_chat_streamed(openai_sdk: openai.AsyncOpenAI) -> None:
    raw = await openai_sdk.chat.completions.with_raw_response.create(
        **ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in raw.parse()]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == MESSAGE
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "stop"
    ]
    assert chunks[-1].usage is not None
    assert raw.headers[HEADER] == TOLD


async def test_structured_output_is_refused_in_words(openai_sdk: openai.AsyncOpenAI) -> None:
    class Plan(BaseModel):
        steps: list[str]

    answer = await openai_sdk.chat.completions.parse(**ASK, response_format=Plan)
    assert answer.choices[0].message.refusal == MESSAGE
    assert answer.choices[0].message.parsed is None


async def test_completions(openai_sdk: openai.AsyncOpenAI) -> None:
    answer = await openai_sdk.completions.create(model="fake", prompt=["A tale.", DESPAIR])
    assert [choice.text for choice in answer.choices] == [MESSAGE] * 2


async def test_messages(anthropic_sdk: anthropic.AsyncAnthropic) -> None:
    raw = await anthropic_sdk.messages.with_raw_response.create(**ASK, max_tokens=50)
    message = await raw.parse()
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].text == MESSAGE  # type: ignore[union-attr]
    assert message.stop_reason == "end_turn"
    assert raw.headers[HEADER] == TOLD


async def test_messages_streamed(anthropic_sdk: anthropic.AsyncAnthropic) -> None:
    async with anthropic_sdk.messages.stream(**ASK, max_tokens=50) as stream:
        assert "".join([text async for text in stream.text_stream]) == MESSAGE
        assert (await stream.get_final_message()).stop_reason == "end_turn"


async def test_it_is_never_cached_and_the_conversation_goes_on(openai_sdk: openai.AsyncOpenAI) -> None:
    for _ in range(2):
        raw = await openai_sdk.chat.completions.with_raw_response.create(**ASK)
        assert "x-tollgate-cache" not in raw.headers
    turns = [
        *ASK["messages"],
        {"role": "assistant", "content": MESSAGE},
        {"role": "user", "content": "Thanks. Tell me a story."},
    ]
    answer = await openai_sdk.chat.completions.create(model="fake", messages=turns)
    assert answer.choices[0].message.content == "one two three"
