"""``/v1/responses`` passes every stage that a chat passes: guards, caches, quotas, fallback, truncation, receipts."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.fakes import FakeUpstream, completion, reply, stream
from tests.serving import KEY, OTHER_KEY, Gateway, a_policy, key, serving

pytestmark = pytest.mark.anyio

RECORDED = Path(__file__).parents[2] / "recorded" / "anthropic"
BANNED = "xyzzy"
WORDS = f"It was a fine day and nothing was amiss until someone said {BANNED} aloud and everything went dark at once"
ADDRESS = "ann@example.org"
SLOWED_KEY = "tg-slowed-1"


def topics(stream: str, tenant: str) -> dict[str, Any]:
    rules = {"kind": "topics", "words": [BANNED], "on": ["input", "output"], "action": "block"}
    return {**rules, "stream": stream, "window": 32, "interval": 4, "tenants": [tenant]}


@pytest.fixture
async def gateway(upstream: FakeUpstream, tmp_path: Path) -> AsyncIterator[Gateway]:
    rules = a_policy(upstream.base_url, caches={"exact": {}})
    rules["backends"]["scripted"]["script"] = [
        {"match": "story", "reply": WORDS},
        {"match": "<EMAIL_ADDRESS_1>", "reply": "I wrote to <EMAIL_ADDRESS_1>."},
        {"reply": "All well."},
    ]
    rules["backends"]["claude"] = {
        "kind": "anthropic",
        "base_url": upstream.base_url.removesuffix("/v1"),
        "api_key": "sk-ant-secret",
    }
    rules["models"]["claude"] = {"targets": [{"backend": "claude", "model": "claude-x"}]}
    rules["models"]["safe"] = {
        "targets": [{"backend": "down", "model": "x"}],
        "fallbacks": ["fake"],
        "retry": {"attempts": 1},
    }
    rules["guards"] = {
        "pii": {"entities": ["EMAIL_ADDRESS"]},
        "topics": topics("windowed", "acme"),
        "loose": topics("optimistic", "other"),
    }
    rules["tenants"] = {"slowed": {"quotas": {"requests_per_minute": 1}}}
    rules["keys"].append(key(SLOWED_KEY, "slowed-1", tenant="slowed"))
    async with serving(tmp_path / "policies", rules) as running:
        yield running


def a_client(gateway: Gateway, token: str = KEY) -> openai.AsyncOpenAI:
    http = httpx.AsyncClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=token, max_retries=0, http_client=http)


@pytest.mark.parametrize("token", [KEY, OTHER_KEY], ids=["windowed", "optimistic"])
async def test_a_cut_answer_is_incomplete_and_what_was_revoked_is_not_kept(
    gateway: Gateway, token: str
) -> None:
    start = WORDS.index(BANNED)
    async with a_client(gateway, token) as client:
        answer = await client.responses.create(model="fake", input="a story", stream=True)
        events = [event async for event in answer]
        last = events[-1]
        assert last.type == "response.incomplete"
        kept = await client.responses.retrieve(last.response.id)
        going_on = client.responses.create(model="fake", input="Go on", previous_response_id=kept.id)
        assert (await going_on).output_text == "All well.", "what went before holds nothing that is refused"
    for response in (last.response, kept):
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "content_filter"
        assert response.output_text == WORDS[: len(response.output_text)]
        assert len(response.output_text) <= start
        assert (response.model_extra or {})["tollgate"]["from"] == start
    assert BANNED not in kept.to_json()
    done = next(event for event in events if event.type == "response.output_text.done")
    assert len(done.text) <= start


async def test_a_blocked_question(gateway: Gateway) -> None:
    async with a_client(gateway) as client:
        for asked in (f"say {BANNED}", [{"type": "function_call_output", "call_id": "c", "output": BANNED}]):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model="fake", input=asked)  # type: ignore[arg-type]
            assert caught.value.code == "content_policy_violation"


async def test_personal_data_is_masked_for_the_model_and_not_for_its_owner(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    async with a_client(gateway) as client:
        made = await client.responses.create(model="fake", input=f"Write to {ADDRESS}")
        assert made.output_text == f"I wrote to {ADDRESS}."
        upstream.scripts = [reply(completion("Yes."))]
        await client.responses.create(model="up", input="Did you?", previous_response_id=made.id)
    assert ADDRESS.encode() not in upstream.requests[0].body, "nor out of the store"


async def test_an_answer_out_of_the_cache(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(completion("once"))]
    ask = {"model": "up", "input": "Hi", "instructions": "Be brief."}
    first = await gateway.http.post("/v1/responses", json=ask)
    again = await gateway.http.post("/v1/responses", json=ask)
    streamed = await gateway.http.post("/v1/responses", json={**ask, "stream": True})
    assert [one.headers["x-tollgate-cache"] for one in (first, again, streamed)] == ["miss", "exact", "exact"]
    assert len(upstream.requests) == 1
    assert first.json()["id"] != again.json()["id"]
    assert again.json()["output"][0]["content"][0]["text"] == "once"
    assert "once" in streamed.text
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    asked_otherwise = await gateway.http.post(
        "/v1/chat/completions", json={"model": "up", "messages": messages}
    )
    assert asked_otherwise.headers["x-tollgate-cache"] == "exact", "it is the same question"


async def test_a_limit_and_its_headers(gateway: Gateway) -> None:
    headers = {"authorization": f"Bearer {SLOWED_KEY}"}
    ask = {"model": "fake", "input": "Hi"}
    first = await gateway.http.post("/v1/responses", json=ask, headers=headers)
    second = await gateway.http.post("/v1/responses", json=ask, headers=headers)
    assert (first.status_code, second.status_code) == (200, 429)
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert int(second.headers["retry-after"]) > 0


async def test_a_fallback_answers_and_the_receipt_says_so(gateway: Gateway) -> None:
    answer = await gateway.http.post("/v1/responses", json={"model": "safe", "input": "Hi"})
    assert (answer.json()["model"], answer.headers["x-tollgate-model"]) == ("fake", "fake")
    path = f"/v1/requests/{answer.headers['x-request-id']}"
    async with asyncio.timeout(300):
        while (found := await gateway.http.get(path)).status_code == 404:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert len(found.json()["stages"]["fallback"]["attempts"]) == 2


async def test_a_conversation_that_is_too_long_loses_its_beginning(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    refused = {
        "error": {
            "message": "This model's maximum context length is 10 tokens.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }
    upstream.scripts = [reply(refused, status=400), reply(completion("fine")), reply(refused, status=400)]
    long = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"{i} {'x' * 50}"} for i in range(9)]
    ask = {"model": "up", "instructions": "Be brief.", "input": long}
    answer = await gateway.http.post("/v1/responses", json={**ask, "truncation": "auto"})
    assert answer.json()["output"][0]["content"][0]["text"] == "fine"
    assert answer.json()["truncation"] == "auto"
    sent = upstream.requests[1].json()["messages"]
    assert (sent[0]["role"], sent[-1]["content"]) == ("system", long[-1]["content"])
    assert len(sent) == 10 - int(answer.headers["x-tollgate-truncated"])
    refusal = await gateway.http.post("/v1/responses", json=ask)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_anthropics_signed_thoughts_go_round(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [stream((RECORDED / "thinking.sse").read_bytes())]
    async with a_client(gateway) as client:
        answer = await client.responses.create(model="claude", input="Think", stream=True)
        events = [event async for event in answer]
        response = events[-1].response  # type: ignore[union-attr]
        kinds = [item.type for item in response.output]
        assert kinds[0] == "reasoning"
        assert kinds[-1] == "message"
        assert response.output[0].summary[0].text
        call: Any = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
        result: Any = {"type": "function_call_output", "call_id": "call_1", "output": "1"}
        thoughts = [item.to_dict() for item in response.output if item.type == "reasoning"]
        tools: Any = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
        upstream.scripts = [reply((RECORDED / "text.json").read_bytes())]
        history: Any = [{"role": "user", "content": "Think"}, *thoughts, call, result]
        await client.responses.create(model="claude", input=history, tools=tools)
    said = upstream.requests[-1].json()["messages"][1]["content"]
    recorded = (RECORDED / "thinking.sse").read_text()
    signed = [block for block in said if block["type"] in ("thinking", "redacted_thinking")]
    assert len(signed) == 2
    for block in signed:
        assert (block.get("signature") or block["data"]) in recorded
    assert said[-1]["type"] == "tool_use"


async def test_pictures_reach_the_model(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(completion("A heart."))]
    url = "data:image/png;base64,iVBORw0KGgo="
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": url}]
    answer = await gateway.http.post(
        "/v1/responses", json={"model": "up", "input": [{"role": "user", "content": parts}]}
    )
    assert answer.status_code == 200
    assert upstream.requests[0].json()["messages"][0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": url, "detail": "auto"}},
    ]


# Counting and compacting


async def test_input_tokens_are_counted(gateway: Gateway) -> None:
    async with a_client(gateway) as client:
        few = await client.responses.input_tokens.count(model="fake", input="Hi")
        many = await client.responses.input_tokens.count(model="fake", input="Hello there. " * 100)
        made = await client.responses.create(model="fake", input="Hello there. " * 100)
        alone = await client.responses.input_tokens.count(model="fake", input="Hi")
        after = await client.responses.input_tokens.count(
            model="fake", input="Hi", previous_response_id=made.id
        )
    assert few.object == "response.input_tokens"
    assert 0 < few.input_tokens < many.input_tokens
    assert alone.input_tokens < after.input_tokens, "what it continues counts"


async def test_anthropic_counts_what_it_would_be_sent(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply({"input_tokens": 42})]
    ask = {"model": "claude", "input": "Hi", "instructions": "Be brief."}
    answer = await gateway.http.post("/v1/responses/input_tokens", json=ask)
    assert answer.json() == {"object": "response.input_tokens", "input_tokens": 42}
    assert answer.headers["x-tollgate-count"] == "provider"
    assert upstream.requests[0].path == "/v1/messages/count_tokens"
    assert upstream.requests[0].json() == {
        "model": "claude-x",
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    }


async def test_a_conversation_is_compacted_and_goes_on(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(completion("Ann likes tea.")), reply(completion("Tea."))]
    conversation: Any = [
        {"role": "developer", "content": "Be polite."},
        {"role": "user", "content": "I like tea."},
        {"type": "function_call", "call_id": "c", "name": "note", "arguments": '{"likes":"tea"}'},
        {"type": "function_call_output", "call_id": "c", "output": "noted"},
        {"role": "assistant", "content": "I noted it."},
    ]
    async with a_client(gateway) as client:
        compacted = await client.responses.compact(model="up", input=conversation)
        assert compacted.object == "response.compaction"
        assert [item.type for item in compacted.output] == ["compaction"]
        assert compacted.usage.total_tokens == 10
        kept: Any = [item.to_dict() for item in compacted.output]
        asked = await client.responses.create(
            model="up", input=[*kept, {"role": "user", "content": "What do I like?"}]
        )
    assert asked.output_text == "Tea."
    quoted = upstream.requests[0].json()["messages"][1]["content"]
    for said in ("I like tea.", '{"likes":"tea"}', "noted", "I noted it."):
        assert said in quoted
    assert "tools" not in upstream.requests[0].json()
    system, summary, question = upstream.requests[1].json()["messages"]
    assert (system["content"], question["content"]) == ("Be polite.", "What do I like?")
    assert summary["content"].endswith("Ann likes tea.")


async def compact(gateway: Gateway, *items: Any) -> Any:
    said = [*items, {"role": "developer", "content": "Be polite."}, {"role": "user", "content": "Hello."}]
    answer = await gateway.http.post("/v1/responses/compact", json={"model": "up", "input": said})
    assert answer.status_code == 200
    return answer.json()["output"]


async def test_a_compaction_is_for_its_tenant_alone(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(completion("Ann likes tea."))]
    items = await compact(gateway)
    assert b"Ann" not in urlsafe_b64decode(items[0]["encrypted_content"].partition(".")[2] + "==")
    for path in ("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"):
        refused = await gateway.http.post(
            path, json={"model": "up", "input": items}, headers={"authorization": f"Bearer {OTHER_KEY}"}
        )
        told = refused.json()["error"]
        assert (refused.status_code, told["code"]) == (400, "invalid_encrypted_content"), path
        assert "another tenant" in told["message"]
    assert len(upstream.requests) == 1


async def test_who_compacts_again_keeps_what_the_system_said(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.scripts = [
        reply(completion(text)) for text in ("Ann likes tea.", "Ann likes green tea.", "Tea.")
    ]
    again = await compact(gateway, *await compact(gateway))
    assert "Ann likes tea." in upstream.requests[1].json()["messages"][1]["content"]
    await gateway.http.post("/v1/responses", json={"model": "up", "input": again})
    said = [message["content"] for message in upstream.requests[2].json()["messages"]]
    assert said[:2] == ["Be polite.", "Be polite."]
    assert said[2].endswith("green tea.")


@pytest.mark.parametrize("secret", ["a" * 32, "b" * 32])
async def test_a_compaction_opens_at_every_gateway_of_one_secret(
    upstream: FakeUpstream, tmp_path: Path, secret: str
) -> None:
    rules = a_policy(upstream.base_url)
    upstream.scripts = [reply(completion("Ann likes tea.")), reply(completion("Tea."))]
    async with serving(tmp_path / "one" / "policies", rules, session_secret="a" * 32) as one:
        items = await compact(one)
    async with serving(tmp_path / "two" / "policies", rules, session_secret=secret) as other:
        answer = await other.http.post("/v1/responses", json={"model": "up", "input": items})
    assert answer.status_code == (200 if secret == "a" * 32 else 400)
    if answer.status_code == 400:
        assert "session secret" in answer.json()["error"]["message"]


async def test_an_empty_summary_is_an_error(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(completion(" "))]
    answer = await gateway.http.post("/v1/responses/compact", json={"model": "up", "input": "Hi"})
    assert answer.status_code == 502
    assert "empty summary" in answer.json()["error"]["message"]
