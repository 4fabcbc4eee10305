"""Anthropic's SDK before Anthropic's API: what passes through the gateway is what the SDK sends and gets by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import orjson
import pytest

from tests.fakes import Action, FakeUpstream, Received, answer_events, reply, stream
from tests.serving import KEY, Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

RECORDED = Path(__file__).parents[2] / "recorded" / "anthropic"
EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
PIXEL = "iVBORw0KGgo="
BETAS = [
    "claude-code-20250219",
    "interleaved-thinking-2025-05-14",
    "context-management-2025-06-27",
    "prompt-caching-scope-2026-01-05",
    "fine-grained-tool-streaming-2025-05-14",
]

AGENT: dict[str, Any] = {
    "model": "claude",
    "max_tokens": 8000,
    "system": [
        {"type": "text", "text": "You are an agent."},
        {"type": "text", "text": "It is Sunday.", "cache_control": EPHEMERAL},
    ],
    "tools": [
        {
            "name": "Read",
            "description": "Reads a file.",
            "input_schema": {"type": "object", "properties": {}},
        },
        {
            "name": "Bash",
            "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
            "cache_control": HOUR,
        },
    ],
    "thinking": {"type": "adaptive"},
    "metadata": {"user_id": "user_1_account__session_2"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": EPHEMERAL}]},
    ],
}
"""As coding agents ask: the system as a list, marks for the prompt cache, betas."""

HISTORY: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Compare these."},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
            {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
                "title": "Report",
                "context": "Last year's.",
                "citations": {"enabled": True},
                "cache_control": EPHEMERAL,
            },
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Plain."}},
            {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
            {"type": "document", "source": {"type": "file", "file_id": "file_2"}},
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "text", "text": "A chunk."}]},
            },
            {
                "type": "search_result",
                "source": "https://example.com",
                "title": "Found",
                "content": [{"type": "text", "text": "A result."}],
            },
            {"type": "container_upload", "file_id": "file_3"},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"},
            {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"},
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "sky"}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": [
                    {
                        "type": "web_search_result",
                        "url": "https://example.com",
                        "title": "Sky",
                        "encrypted_content": "ZW5j",
                        "page_age": None,
                    }
                ],
            },
            {
                "type": "text",
                "text": "It is blue.",
                "citations": [
                    {
                        "type": "web_search_result_location",
                        "url": "https://example.com",
                        "title": "Sky",
                        "encrypted_index": "aWR4",
                        "cited_text": "blue",
                    }
                ],
            },
            {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "is_error": True,
                "content": [
                    {"type": "text", "text": "No such file.", "cache_control": EPHEMERAL},
                    {"type": "document", "source": {"type": "file", "file_id": "file_4"}},
                ],
            },
            {"type": "block_of_tomorrow", "with": {"what": ["ever"]}},
        ],
    },
]

EVERYTHING: dict[str, Any] = {
    **AGENT,
    "messages": HISTORY,
    "tools": [
        *AGENT["tools"],
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "mcp_toolset", "mcp_server_name": "remote"},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 5000, "display": "omitted"},
    "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "service_tier": "standard_only",
    "stop_sequences": ["END"],
    "container": {"id": "container_1", "skills": [{"type": "anthropic", "skill_id": "pdf"}]},
    "mcp_servers": [
        {"type": "url", "url": "https://mcp.example.com", "name": "remote", "authorization_token": "t"}
    ],
    "extra_body": {"cache_control": EPHEMERAL, "field_of_tomorrow": {"a": [1, 2.5, None, True]}},
}

MESSAGE: dict[str, Any] = {
    "id": "msg_01Up",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": "Hello.", "citations": None}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 10, "output_tokens": 3},
}


def claude(base_url: str, **more: Any) -> dict[str, Any]:
    policy = a_policy(base_url, **more)
    policy["backends"]["claude"] = {
        "kind": "anthropic",
        "base_url": base_url.removesuffix("/v1"),
        "api_key": "sk-ant-secret",
    }
    policy["models"]["claude"] = {"targets": [{"backend": "claude", "model": "claude"}]}
    policy["models"]["mixed"] = {**policy["models"]["claude"], "fallbacks": ["up"]}
    policy["models"]["both"] = {"targets": [{"backend": "claude", "model": "x"}], "fallbacks": ["fake"]}
    return policy


@pytest.fixture
async def gateway(upstream: FakeUpstream, tmp_path: Path) -> AsyncIterator[Gateway]:
    upstream.scripts = [reply(MESSAGE)]
    async with serving(tmp_path / "policies", claude(upstream.base_url)) as running:
        yield running


def sdk(url: str, key: str = KEY) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0)


async def both_ways(upstream: FakeUpstream, gateway: Gateway, **ask: Any) -> tuple[Received, Received]:
    """The request as the SDK sends it by itself, and as the gateway does."""
    async with sdk(upstream.base_url, "sk-ant-secret") as direct, sdk(gateway.url) as through:
        for client in (direct, through):
            await client.beta.messages.create(**ask)
    return upstream.requests[-2], upstream.requests[-1]


# The request


@pytest.mark.parametrize("ask", [AGENT, EVERYTHING], ids=["agent", "everything"])
async def test_the_request_is_the_one_that_the_sdk_sends_by_itself(
    upstream: FakeUpstream, gateway: Gateway, ask: dict[str, Any]
) -> None:
    direct, through = await both_ways(upstream, gateway, **ask, betas=BETAS)
    assert through.json() == direct.json()
    assert through.path == direct.path
    for name in ("anthropic-beta", "anthropic-version"):
        assert through.headers[name] == direct.headers[name]
    assert through.headers["x-api-key"] == "sk-ant-secret"
    assert all(beta in through.headers["anthropic-beta"] for beta in BETAS)


async def test_only_the_models_name_is_the_policys(upstream: FakeUpstream, gateway: Gateway) -> None:
    async with sdk(gateway.url) as client:
        await client.messages.create(model="both", max_tokens=5, messages=[{"role": "user", "content": "Hi"}])
    [sent] = upstream.requests
    assert sent.json() == {"model": "x", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    assert sent.path == "/v1/messages"
    assert "anthropic-beta" not in sent.headers


async def test_the_query_of_older_sdks_passes(upstream: FakeUpstream, gateway: Gateway) -> None:
    answer = await gateway.http.post("/v1/messages?beta=true", json=AGENT)
    assert answer.status_code == 200
    assert upstream.requests[0].path == "/v1/messages?beta=true"


async def test_betas_pass_for_openais_callers_too(upstream: FakeUpstream, gateway: Gateway) -> None:
    ask = {"model": "claude", "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"anthropic-beta": "context-1m-2025-08-07", "anthropic-version": "2099-01-01"}
    answer = await gateway.http.post("/v1/chat/completions", json=ask, headers=headers)
    assert answer.status_code == 200
    assert upstream.requests[0].headers["anthropic-beta"] == "context-1m-2025-08-07"
    assert upstream.requests[0].headers["anthropic-version"] == "2023-06-01"


async def test_another_provider_is_not_asked_what_only_this_one_knows(
    upstream: FakeUpstream, gateway: Gateway
) -> None:
    ask = {**AGENT, "model": "up", "tools": [{"type": "bash_20250124", "name": "bash"}]}
    del ask["context_management"]
    async with sdk(gateway.url) as client:
        with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\]' is a tool of type 'bash_20250124'"):
            await client.messages.create(**ask)
        upstream.scripts = [reply({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]})]
        await client.messages.create(**{**ask, "tools": AGENT["tools"]})
    [sent] = upstream.requests
    assert "anthropic-beta" not in sent.headers
    assert [tool["function"]["name"] for tool in sent.json()["tools"]] == ["Read", "Bash"]


# Guards


SECRET = "anna@example.com"


def hidden(text: str) -> str:
    return text.replace(SECRET, "<EMAIL_ADDRESS_1>")


async def test_guards_mask_every_text_wherever_it_stands(upstream: FakeUpstream, tmp_path: Path) -> None:
    words = f"write to {SECRET} now"
    result = {"type": "web_search_result", "url": "https://a", "title": words, "encrypted_content": "ZW5j"}
    ask: dict[str, Any] = {
        "model": "claude",
        "max_tokens": 100,
        "system": [{"type": "text", "text": words, "cache_control": EPHEMERAL}],
        "tools": [{"name": "f", "description": words, "input_schema": {"type": "object", "title": words}}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": words},
                    {
                        "type": "document",
                        "title": words,
                        "context": words,
                        "source": {"type": "text", "media_type": "text/plain", "data": words},
                    },
                    {"type": "document", "source": {"type": "content", "content": words}},
                    {
                        "type": "search_result",
                        "source": words,
                        "title": words,
                        "content": [{"type": "text", "text": words}],
                    },
                    {"type": "block_of_tomorrow", "deep": [{"down": words}]},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": words, "signature": "c2lnbmVk+/=="},
                    {
                        "type": "server_tool_use",
                        "id": "srvtoolu_1",
                        "name": "web_search",
                        "input": {"q": words},
                    },
                    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [result]},
                    {
                        "type": "tool_use",
                        "id": "toolu_1",
                        "name": "f",
                        "input": {"a": [words, 5], words: None},
                    },
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": words}
                ],
            },
        ],
        "field_of_tomorrow": {"text": words},
    }
    guard = {"on": ["input"], "action": "mask", "entities": ["EMAIL_ADDRESS"]}
    policy = claude(upstream.base_url, guards={"pii": guard})
    upstream.scripts = [reply(MESSAGE)]
    async with serving(tmp_path / "policies", policy) as gateway:
        answer = await gateway.http.post("/v1/messages", json=ask)
    assert answer.status_code == 200, answer.text
    sent = upstream.requests[0].json()
    thinking = sent["messages"][1]["content"][0]
    assert thinking.pop("signature") == "c2lnbmVk+/=="  # opaque: not a word of anybody's
    ask["messages"][1]["content"][0].pop("signature")
    assert SECRET not in str(sent)
    assert str(sent) == hidden(str(ask))


# The cache


async def test_what_only_this_dialect_says_tells_answers_apart(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    policy = claude(upstream.base_url, caches={"exact": {"ttl": "1h"}})
    ask: dict[str, Any] = {
        "model": "claude",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "Hi"}],
    }
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Plain."}}
    cited = {**document, "citations": {"enabled": True}}
    kinds: list[dict[str, Any]] = [
        ask,
        {**ask, "thinking": {"type": "adaptive"}},
        {**ask, "thinking": {"type": "disabled"}},
        {**ask, "output_config": {"effort": "low"}},
        {**ask, "messages": [{"role": "user", "content": [document]}]},
        {**ask, "messages": [{"role": "user", "content": [cited]}]},
        {**ask, "field_of_tomorrow": 1},
    ]
    same: list[dict[str, Any]] = [
        {**ask, "metadata": {"user_id": "another"}},
        {**ask, "service_tier": "standard_only"},
        {**ask, "cache_control": EPHEMERAL},
    ]
    upstream.scripts = [reply(MESSAGE)]
    async with serving(tmp_path / "policies", policy) as gateway:

        async def result(body: dict[str, Any], **headers: str) -> str:
            answer = await gateway.http.post("/v1/messages", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            return answer.headers["x-tollgate-cache"]

        assert [await result(body) for body in kinds] == ["miss"] * len(kinds)
        assert await result(ask, **{"anthropic-beta": "some-2026-01-01"}) == "miss"
        assert [await result(body) for body in (*kinds, *same)] == ["exact"] * (len(kinds) + len(same))


# The answer


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), orjson.dumps(e)) for e in events)


RESULT = {
    "type": "web_search_result",
    "url": "https://example.com",
    "title": "Sky by anna@example.com",
    "encrypted_content": "ZW5j",
    "page_age": None,
}
CITATION = {
    "type": "web_search_result_location",
    "url": "https://example.com",
    "title": "Sky",
    "encrypted_index": "aWR4",
    "cited_text": "blue, says anna@example.com",
}
USAGE: dict[str, Any] = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 300,
    "cache_read_input_tokens": 50,
    "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
    "output_tokens": 1,
    "service_tier": "priority",
    "inference_geo": "eu",
    "speed": "fast",
}
END_USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 300,
    "cache_read_input_tokens": 50,
    "output_tokens": 60,
    "output_tokens_details": {"thinking_tokens": 9},
    "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0},
}


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def piece(index: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **more}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


EVENTS: list[dict[str, Any]] = [
    {
        "type": "message_start",
        "message": {
            **MESSAGE,
            "content": [],
            "stop_reason": None,
            "stop_details": None,
            "container": {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z", "skills": None},
            "usage": USAGE,
        },
    },
    start(0, type="thinking", thinking="", signature=""),
    piece(0, "thinking_delta", thinking="Let me "),
    piece(0, "thinking_delta", thinking="look."),
    piece(0, "signature_delta", signature="c2lnbmVk"),
    stop(0),
    start(1, type="redacted_thinking", data="aGlkZGVu"),
    stop(1),
    start(2, type="text", text="", citations=None),
    piece(2, "text_delta", text="I'll search."),
    stop(2),
    start(3, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
    piece(3, "input_json_delta", partial_json='{"query": "mail anna'),
    piece(3, "input_json_delta", partial_json='@example.com"}'),
    stop(3),
    start(4, type="web_search_tool_result", tool_use_id="srvtoolu_1", content=[RESULT]),
    stop(4),
    start(5, type="text", text="", citations=[]),
    piece(5, "citations_delta", citation=CITATION),
    piece(5, "text_delta", text="It is blue."),
    stop(5),
    start(6, type="text", text="", citations=None),
    piece(6, "text_delta", text=" Well."),
    stop(6),
    start(7, type="block_of_tomorrow", words="new", n=[1]),
    piece(7, "delta_of_tomorrow", words=" words"),
    stop(7),
    start(8, type="tool_use", id="toolu_1", name="Read", input={}, caller={"type": "direct"}),
    piece(8, "input_json_delta", partial_json='{"path": "a"}'),
    stop(8),
    {
        "type": "message_delta",
        "delta": {
            "container": {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z", "skills": None},
            "stop_reason": "pause_turn",
            "stop_sequence": None,
            "stop_details": None,
        },
        "usage": END_USAGE,
        "context_management": {"applied_edits": [{"type": "clear_thinking_20251015", "cleared": 2}]},
    },
    {"type": "message_stop"},
]
WHOLE: dict[str, Any] = {
    **EVENTS[0]["message"],
    "content": [
        {"type": "thinking", "thinking": "Let me look.", "signature": "c2lnbmVk"},
        {"type": "redacted_thinking", "data": "aGlkZGVu"},
        {"type": "text", "text": "I'll search.", "citations": None},
        {
            "type": "server_tool_use",
            "id": "srvtoolu_1",
            "name": "web_search",
            "input": {"query": "mail anna@example.com"},
        },
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [RESULT]},
        {"type": "text", "text": "It is blue.", "citations": [CITATION]},
        {"type": "text", "text": " Well.", "citations": None},
        {"type": "block_of_tomorrow", "words": "new words", "n": [1]},
        {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "Read",
            "input": {"path": "a"},
            "caller": {"type": "direct"},
        },
    ],
    "stop_reason": "pause_turn",
    "usage": {**USAGE, **END_USAGE},
    "context_management": EVENTS[-2]["context_management"],
}
ASK: dict[str, Any] = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


def read(data: bytes) -> list[dict[str, Any]]:
    blocks = data.decode().removesuffix("\n\n").split("\n\n")
    return [orjson.loads(block.partition("data: ")[2]) for block in blocks]


async def test_a_stream_is_the_one_that_the_provider_sends(upstream: FakeUpstream, gateway: Gateway) -> None:
    upstream.scripts = [stream(sse(*EVENTS))]
    answer = await gateway.http.post("/v1/messages", json={**ASK, "stream": True})
    for told, sent in zip(read(answer.content), EVENTS, strict=True):
        assert told == sent


async def test_a_whole_answer_is_the_one_that_the_provider_sends(
    upstream: FakeUpstream, gateway: Gateway
) -> None:
    upstream.scripts = [reply(WHOLE)]
    answer = await gateway.http.post("/v1/messages", json=ASK)
    assert answer.json() == WHOLE


async def test_a_whole_answer_is_the_same_where_it_is_collected(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    given = claude(upstream.base_url)
    given["models"]["claude"]["timeouts"] = {"idle": "60s"}
    upstream.scripts = [stream(sse(*EVENTS))]
    async with serving(tmp_path / "p", given) as gateway:
        answer = await gateway.http.post("/v1/messages", json=ASK)
        assert answer.json() == WHOLE
        sent = upstream.requests[0].json()
        assert sent.pop("stream") is True
        assert {**sent, "model": ASK["model"]} == ASK


async def test_the_sdk_makes_the_same_of_both(upstream: FakeUpstream, gateway: Gateway) -> None:
    known = [
        {**event, "index": 7} if event.get("index") == 8 else event
        for event in EVENTS
        if event.get("index") != 7
    ]
    upstream.scripts = [stream(sse(*known))]
    found = []
    for url in (upstream.base_url, gateway.url):
        async with sdk(url) as client, client.messages.stream(**ASK) as answer:
            found.append((await answer.get_final_message()).to_dict())
    assert found[0] == found[1]


async def test_an_answer_may_turn_from_one_form_into_the_other_in_a_cache(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    policy = claude(upstream.base_url, caches={"exact": {"ttl": "1h"}})
    kept = {**EVENTS[-2], "delta": {**EVENTS[-2]["delta"], "stop_reason": "tool_use"}}
    upstream.scripts = [stream(sse(*EVENTS[:-2], kept, EVENTS[-1]))]
    async with serving(tmp_path / "policies", policy) as gateway:
        await gateway.http.post("/v1/messages", json={**ASK, "stream": True})
        whole = await gateway.http.post("/v1/messages", json=ASK)
        again = await gateway.http.post("/v1/messages", json={**ASK, "stream": True})
    assert len(upstream.requests) == 1
    assert whole.headers["x-tollgate-cache"] == again.headers["x-tollgate-cache"] == "exact"
    assert whole.json()["content"] == WHOLE["content"]
    async with FakeUpstream(stream(again.content)) as replayed, sdk(replayed.base_url) as client:
        raw = [event.type async for event in await client.messages.create(**ASK, stream=True)]
    assert raw.count("content_block_start") == len(WHOLE["content"])


async def test_a_stream_of_what_was_kept_whole_tells_clients_what_the_whole_told(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    blocks = [block for block in WHOLE["content"] if block["type"] != "block_of_tomorrow"]
    policy = claude(upstream.base_url, caches={"exact": {"ttl": "1h"}})
    upstream.scripts = [reply({**WHOLE, "content": blocks, "stop_reason": "tool_use"})]
    async with serving(tmp_path / "policies", policy) as gateway, sdk(gateway.url) as client:
        whole = (await client.beta.messages.create(**ASK)).to_dict()
        async with client.beta.messages.stream(**ASK) as answer:
            streamed = (await answer.get_final_message()).to_dict()
    assert len(upstream.requests) == 1
    assert streamed["usage"] == whole["usage"]
    assert {**streamed, "id": ""} == {**whole, "id": ""}


async def test_a_stream_that_another_server_ended_tells_its_usage(
    upstream: FakeUpstream, gateway: Gateway
) -> None:
    words = [EVENTS[0], start(0, type="text", text=""), piece(0, "text_delta", text="Hello ")]
    upstream.scripts = [stream(sse(*words), Action.CLOSE), stream(*answer_events("Hello ", "there"))]
    async with sdk(gateway.url) as client, client.messages.stream(**{**ASK, "model": "mixed"}) as answer:
        message = await answer.get_final_message()
    assert [block.to_dict()["text"] for block in message.content] == ["Hello there"]
    assert message.usage.output_tokens > 0


async def test_guards_see_all_that_reaches_the_caller(upstream: FakeUpstream, tmp_path: Path) -> None:
    guard = {"on": ["output"], "action": "redact", "entities": ["EMAIL_ADDRESS"]}
    policy = claude(upstream.base_url, guards={"pii": guard})
    upstream.scripts = [stream(sse(*EVENTS)), reply(WHOLE)]
    async with serving(tmp_path / "policies", policy) as gateway:
        streamed = await gateway.http.post("/v1/messages", json={**ASK, "stream": True})
        whole = await gateway.http.post("/v1/messages", json=ASK)
    assert SECRET not in streamed.text
    kinds = [event["type"] for event in read(streamed.content)]
    assert kinds.count("content_block_start") == len(WHOLE["content"])
    told = orjson.dumps(WHOLE).replace(SECRET.encode(), b"[EMAIL_ADDRESS]")
    assert whole.json() == orjson.loads(told)


async def test_guards_give_their_words_back_to_callers(upstream: FakeUpstream, tmp_path: Path) -> None:
    guard = {"on": ["input"], "action": "mask", "entities": ["EMAIL_ADDRESS"]}
    policy = claude(upstream.base_url, guards={"pii": guard})
    masked = orjson.dumps(WHOLE).replace(SECRET.encode(), b"<EMAIL_ADDRESS_1>")
    events = orjson.dumps(EVENTS).replace(SECRET.encode(), b"<EMAIL_ADDRESS_1>")
    upstream.scripts = [reply(masked), stream(sse(*orjson.loads(events)))]
    ask = {**ASK, "messages": [{"role": "user", "content": f"I am {SECRET}"}]}
    async with serving(tmp_path / "policies", policy) as gateway:
        whole = await gateway.http.post("/v1/messages", json=ask)
        streamed = await gateway.http.post("/v1/messages", json={**ask, "stream": True})
    assert whole.json() == WHOLE
    assert read(streamed.content)[16] == EVENTS[16] or EVENTS[15] in read(streamed.content)
    assert "<EMAIL" not in streamed.text


async def test_an_answer_that_a_guard_cuts_is_no_pause(upstream: FakeUpstream, tmp_path: Path) -> None:
    guard = {"on": ["output"], "action": "block", "entities": ["EMAIL_ADDRESS"]}
    policy = claude(upstream.base_url, guards={"pii": guard})
    upstream.scripts = [reply(WHOLE)]
    async with serving(tmp_path / "policies", policy) as gateway:
        answer = await gateway.http.post("/v1/messages", json=ASK)
    assert SECRET not in answer.text
    assert answer.json()["stop_reason"] == "refusal"
    assert answer.json()["tollgate"]["revoked"] is True


# Thoughts in OpenAI's dialect


@pytest.mark.parametrize("streamed", [False, True])
async def test_signed_thoughts_survive_tool_turns_of_openais_callers(
    upstream: FakeUpstream, gateway: Gateway, streamed: bool
) -> None:
    upstream.scripts = [stream(sse(*EVENTS)) if streamed else reply(WHOLE)]
    http = httpx.AsyncClient(verify=False, trust_env=False)
    ask: Any = {"model": "claude", "messages": [{"role": "user", "content": "Hi"}]}
    message: dict[str, Any] = {"role": "assistant", "content": "", "thinking_blocks": [], "tool_calls": []}
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, http_client=http) as client:
        if streamed:
            async for event in await client.chat.completions.create(stream=True, **ask):
                delta = event.choices[0].delta.to_dict()
                assert "signature" not in delta
                assert "native" not in delta
                message["content"] += delta.get("content") or ""
                message["thinking_blocks"] += delta.get("thinking_blocks") or []  # type: ignore[operator]
                for call in delta.get("tool_calls") or []:  # type: ignore[attr-defined]
                    if "id" in call:
                        message["tool_calls"].append(call)
                    else:
                        message["tool_calls"][-1]["function"]["arguments"] += call["function"]["arguments"]
        else:
            whole = await client.chat.completions.create(**ask)
            message = whole.choices[0].message.to_dict()
            assert whole.id == "chatcmpl-01Up"
        assert [call["id"] for call in message["tool_calls"]] == ["call_1"]
        result = {"role": "tool", "tool_call_id": "call_1", "content": "A file."}
        await client.chat.completions.create(
            **{**ask, "messages": [*ask["messages"], message, result]}, stream=streamed
        )
    assert message["thinking_blocks"] == WHOLE["content"][:2]
    assistant, answered = upstream.requests[1].json()["messages"][1:]
    assert assistant["content"] == [
        *WHOLE["content"][:2],
        {"type": "text", "text": "I'll search.It is blue. Well."},
        {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a"}},
    ]
    assert answered["content"][0]["tool_use_id"] == "toolu_1"


# The bill


async def test_what_is_put_into_the_prompt_cache_is_billed_as_such(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    policy = claude(
        upstream.base_url, prices={"claude/claude": {"input": 1.0, "cached_input": 0.1, "output": 5.0}}
    )
    # Each has an id of its own: an answer with that of the one before is taken for that one, come late.
    begun = {**EVENTS[0], "message": {**EVENTS[0]["message"], "id": "msg_04"}}
    cut = (*stream(sse(begun, *EVENTS[1:4]), whole=False), Action.CLOSE)
    wholes = [reply({**WHOLE, "id": f"msg_0{number}"}) for number in (2, 3)]
    upstream.scripts = [stream(sse(*EVENTS)), *wholes, cut]
    async with serving(tmp_path / "policies", policy) as gateway:
        http = gateway.http
        chat = {"model": "claude", "messages": ASK["messages"]}
        answers = [
            await http.post("/v1/messages", json={**ASK, "stream": True}),
            await http.post("/v1/messages", json=ASK),
            await http.post("/v1/chat/completions", json=chat),
            await http.post("/v1/messages", json={**ASK, "stream": True}),
        ]
        bills = []
        for answer in answers:
            receipt = await http.get(f"/v1/requests/{answer.headers['x-request-id']}")
            bills.append(receipt.json()["stages"]["quota"]["cost_usd"])
    prompt = 10 * 1.0 + 50 * 0.1 + 100 * 1.25 + 200 * 2.0
    assert [round(bill * 1e6, 6) for bill in bills[:3]] == [prompt + 60 * 5.0] * 3
    # Of one that broke off the prompt is known from its start, and its words are counted.
    assert prompt < round(bills[3] * 1e6, 6) < prompt + 60 * 5.0
    assert answers[2].json()["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 50,
        "cache_write_tokens": 300,
    }


# Counting


async def test_the_provider_counts_its_own_prompts(upstream: FakeUpstream, tmp_path: Path) -> None:
    guard = {"on": ["input"], "action": "mask", "entities": ["EMAIL_ADDRESS"]}
    policy = claude(upstream.base_url, guards={"pii": guard})
    upstream.scripts = [reply({"input_tokens": 1234, "context_management": {"original_input_tokens": 2000}})]
    ask = {name: AGENT[name] for name in ("model", "system", "tools", "thinking", "context_management")}
    ask["messages"] = [{"role": "user", "content": f"I am {SECRET}"}]
    async with serving(tmp_path / "policies", policy) as gateway:

        async def count(model: str) -> httpx.Response:
            body = {**ask, "model": model}
            return await gateway.http.post(
                "/v1/messages/count_tokens", json=body, headers={"anthropic-beta": "some-2026-01-01"}
            )

        told = await count("claude")
        other = await count("fake")
        upstream.scripts = [reply({"type": "error", "error": {"type": "overloaded_error"}}, status=529)]
        down = await count("claude")
        upstream.scripts = [
            reply({"type": "error", "error": {"type": "invalid_request_error", "message": "No."}}, status=400)
        ]
        wrong = await count("claude")
    assert told.json() == {"input_tokens": 1234, "context_management": {"original_input_tokens": 2000}}
    assert told.headers["x-tollgate-count"] == "provider"
    sent = upstream.requests[0]
    assert sent.path == "/v1/messages/count_tokens"
    assert sent.headers["anthropic-beta"] == "some-2026-01-01"
    assert sent.json() == {**ask, "messages": [{"role": "user", "content": "I am <EMAIL_ADDRESS_1>"}]}
    for answer in (other, down):
        assert answer.headers["x-tollgate-count"] == "estimate"
        assert answer.json()["input_tokens"] > 5
    assert (wrong.status_code, wrong.json()["error"]["message"]) == (400, "No.")


# JSON for OpenAI's callers


def saying(*words: str, reason: str = "end_turn") -> Any:
    events = [
        {"type": "message_start", "message": {**MESSAGE, "content": []}},
        start(0, type="text", text=""),
        *(piece(0, "text_delta", text=word) for word in words),
        stop(0),
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    return stream(sse(*events))


OBJECT = {"a": 'br}ace and "quote"', "b": [1, {"c": None}]}


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_json_mode_gives_the_object_and_nothing_else(
    upstream: FakeUpstream, gateway: Gateway, size: int
) -> None:
    said = f"Here you are:\n```json\n{orjson.dumps(OBJECT).decode()}\n```\nDone {{x}}."
    upstream.scripts = [saying(*(said[i : i + size] for i in range(0, len(said), size)))]
    ask = {
        "model": "claude",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "response_format": {"type": "json_object"},
    }
    whole = await gateway.http.post("/v1/chat/completions", json=ask)
    assert orjson.loads(whole.json()["choices"][0]["message"]["content"]) == OBJECT
    assert "one JSON object" in upstream.requests[0].json()["system"][1]["text"]
    assert "output_config" not in upstream.requests[0].json()


async def test_json_mode_that_fails_is_an_error_and_one_that_is_cut_is_not(
    upstream: FakeUpstream, gateway: Gateway
) -> None:
    ask = {
        "model": "claude",
        "messages": [{"role": "user", "content": "Hi"}],
        "response_format": {"type": "json_object"},
        "stream": True,
    }
    upstream.scripts = [saying("I'd rather not.")]
    refused = await gateway.http.post("/v1/chat/completions", json=ask)
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "upstream_malformed")
    upstream.scripts = [saying('{"a": [1', reason="max_tokens")]
    cut = await gateway.http.post("/v1/chat/completions", json=ask)
    assert cut.status_code == 200
    assert '"finish_reason":"length"' in cut.text


async def test_a_schema_is_a_structured_output_where_the_model_has_them(
    upstream: FakeUpstream, gateway: Gateway
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}}
    named = {"name": "answer", "schema": schema}
    ask = {
        "model": "claude",
        "messages": [{"role": "user", "content": "Hi"}],
        "response_format": {"type": "json_schema", "json_schema": named},
    }
    said = "output_config.format: Extra inputs are not permitted"
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": said}}
    upstream.scripts = [saying('{"a": {}}'), reply(error, status=400), saying('```\n{"a": {}}\n```')]
    for _ in range(2):
        answer = await gateway.http.post("/v1/chat/completions", json=ask)
        assert answer.json()["choices"][0]["message"]["content"] == '{"a": {}}'
    first, second, third = (request.json() for request in upstream.requests)
    closed = {"type": "object", "properties": {}, "additionalProperties": False}
    assert first["output_config"]["format"]["schema"] == {
        "type": "object",
        "properties": {"a": closed},
        "additionalProperties": False,
    }
    assert second == first
    assert "output_config" not in third
    assert orjson.dumps(schema).decode() in third["system"][0]["text"]
