"""Guards as a client meets them: the official SDKs over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.fakes import Action, FakeUpstream, delta, sse, stream
from tests.serving import KEY, OTHER_KEY, Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

BANNED = "xyzzy"
WORDS = f"It was a fine day and nothing was amiss until someone said {BANNED} aloud and everything went dark at once"
ADDRESS = "ann@example.org"


def topics(stream: str) -> dict[str, Any]:
    rules = {"kind": "topics", "words": [BANNED], "on": ["input", "output"], "action": "block"}
    return {**rules, "stream": stream, "window": 32, "interval": 4}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Gateway]:
    rules = a_policy("http://127.0.0.1:9/v1")
    rules["backends"]["scripted"]["script"] = [
        {"match": "story", "reply": WORDS},
        {
            "match": "<EMAIL_ADDRESS_1>",
            "reply": "I wrote to <EMAIL_ADDRESS_1>, and not to <EMAIL_ADDRESS_2>.",
        },
        {"reply": "All well."},
    ]
    rules["guards"] = {
        "pii": {"entities": ["EMAIL_ADDRESS"]},
        "topics": {**topics("windowed"), "tenants": ["acme"]},
        "loose": {**topics("optimistic"), "tenants": ["other"]},
    }
    async with serving(tmp_path / "policies", rules) as running:
        yield running


def client(gateway: Gateway, key: str = KEY) -> openai.AsyncOpenAI:
    http = httpx.AsyncClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0, http_client=http)


def ask(content: str) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
async def test_a_stream_that_is_cut_has_a_well_formed_end(guarded: Gateway, key: str) -> None:
    async with client(guarded, key) as sdk:
        stream = await sdk.chat.completions.create(
            **ask("a story"), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    said = [chunk for chunk in chunks if chunk.choices]
    assert chunks[-1] is said[-1]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in said)
    last = said[-1]
    assert [chunk.choices[0].finish_reason for chunk in said if chunk.choices[0].finish_reason] == [
        "content_filter"
    ]
    told = last.model_extra["tollgate"] if last.model_extra else None
    assert told["revoked"] is True
    assert told["from"] == WORDS.index(BANNED)
    assert WORDS.startswith(text)
    if key == KEY:
        assert len(text) <= WORDS.index(BANNED)
    assert len({chunk.id for chunk in said}) == 1
    receipt = (await guarded.http.get(f"/v1/requests/{told['request_id']}")).json() if key == KEY else None
    if receipt is not None:
        assert receipt["stages"]["guard_output"]["cut"]["guard"] == "topics"
        assert BANNED not in json.dumps(receipt)


async def test_the_usage_comes_before_the_end_of_an_answer_that_was_cut(tmp_path: Path) -> None:
    rules = {**a_policy("http://127.0.0.1:1/v1"), "guards": {"topics": topics("hold")}}
    rules["backends"]["scripted"] = {"kind": "fake", "script": [{"reply": WORDS}]}
    async with serving(tmp_path / "policies", rules) as gateway, client(gateway) as sdk:
        events = await sdk.chat.completions.create(
            **ask("a story"), stream=True, stream_options={"include_usage": True}
        )
        *_, told, last = [chunk async for chunk in events]
        receipt = (
            await gateway.http.get(f"/v1/requests/{last.model_extra['tollgate']['request_id']}")
        ).json()  # type: ignore[index]
    assert not told.choices
    assert told.usage is not None
    assert last.choices[0].finish_reason == "content_filter"
    assert [one["outcome"] for one in receipt["stages"]["fallback"]["attempts"]] == ["ok"]


async def test_openais_helper_sees_the_end_of_every_choice(tmp_path: Path) -> None:
    """It counts on the choices to begin in order."""
    said = [
        sse(delta(word, index=index)) for word in ("There ", "was ", BANNED, f" {WORDS}") for index in (0, 1)
    ]
    async with FakeUpstream(stream(*said, Action.HANG)) as upstream:
        rules = {**a_policy(upstream.base_url), "guards": {"topics": topics("windowed")}}
        async with serving(tmp_path / "policies", rules) as gateway, client(gateway) as sdk:
            asked: Any = {**ask("a story"), "model": "up", "n": 2}
            async with sdk.chat.completions.stream(**asked) as events:
                ends = {
                    event.chunk.choices[0].index: event.chunk.choices[0].finish_reason
                    async for event in events
                    if event.type == "chunk"
                }
            seen = await upstream.arrived()
            async with asyncio.timeout(300):
                await seen.left.wait()
            reader = await sdk.chat.completions.create(**asked, stream=True)
            last = [chunk async for chunk in reader][-1]
            told: Any = last.model_extra
            receipt = (await gateway.http.get(f"/v1/requests/{told['tollgate']['request_id']}")).json()
    assert ends == {0: "content_filter", 1: "content_filter"}
    assert [one["outcome"] for one in receipt["stages"]["fallback"]["attempts"]] == ["cut"]


async def test_a_whole_answer_that_is_cut(guarded: Gateway) -> None:
    async with client(guarded) as sdk:
        answer = await sdk.chat.completions.create(**ask("a story"))
    assert answer.choices[0].finish_reason == "content_filter"
    assert not answer.choices[0].message.content
    assert answer.model_extra is not None
    assert answer.model_extra["tollgate"]["guard"] == "topics"


async def test_completions_are_cut_alike(guarded: Gateway) -> None:
    async with client(guarded) as sdk:
        stream = await sdk.completions.create(model="fake", prompt="a story", stream=True)
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "content_filter"
    assert BANNED not in "".join(chunk.choices[0].text for chunk in chunks)


async def test_anthropics_clients_see_a_refusal(guarded: Gateway) -> None:
    async with anthropic.AsyncAnthropic(base_url=guarded.url, api_key=KEY, max_retries=0) as sdk:
        asked: Any = {"max_tokens": 500, **ask("a story")}
        whole = await sdk.messages.create(**asked)
        async with sdk.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
        events = [event async for event in await sdk.messages.create(**asked, stream=True)]
    assert whole.stop_reason == "refusal"
    assert (whole.model_extra or {})["tollgate"]["revoked"] is True
    assert message.stop_reason == "refusal"
    assert BANNED not in message.to_json()
    told = next(event for event in events if event.type == "message_delta")
    assert (told.model_extra or {})["tollgate"]["guard"] == "topics"


async def test_a_request_that_is_refused(guarded: Gateway) -> None:
    async with client(guarded) as sdk:
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.chat.completions.create(**ask(f"say {BANNED}"))
    assert caught.value.code == "content_policy_violation"
    assert "topics" in caught.value.message
    assert BANNED not in caught.value.message


async def test_masks_are_undone_in_the_stream(guarded: Gateway) -> None:
    async with client(guarded) as sdk:
        stream = await sdk.chat.completions.create(**ask(f"Write to {ADDRESS}"), stream=True)
        chunks = [chunk async for chunk in stream]
        whole = await sdk.chat.completions.create(**ask(f"Write to {ADDRESS}"))
    expected = f"I wrote to {ADDRESS}, and not to <EMAIL_ADDRESS_2>."
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected
    assert whole.choices[0].message.content == expected
