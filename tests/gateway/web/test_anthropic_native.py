"""Anthropic's SDK before Anthropic's API: what passes through the gateway is what the SDK sends and gets by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.fakes import FakeUpstream, Received, reply
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
                    {"type": "thinking", "thinking": words, "signature": SECRET},
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
    assert thinking.pop("signature") == SECRET  # opaque: not a word of anybody's
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
