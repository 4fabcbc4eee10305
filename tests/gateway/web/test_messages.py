"""``/v1/messages``: Anthropic's clients before servers of either dialect, and Anthropic behind OpenAI's clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import orjson
import pytest

from tests.fakes import Action, FakeUpstream, answer_events, reply, stream
from tests.serving import KEY, Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

RECORDED = Path(__file__).parents[2] / "recorded" / "anthropic"
ASK: Any = {"max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
TOOLS: Any = [{"name": "get_weather", "input_schema": {"type": "object", "properties": {}}}]


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


@pytest.fixture
async def gateway(upstream: FakeUpstream, tmp_path: Path) -> AsyncIterator[Gateway]:
    """As the others' one, with a model ``claude`` that is asked in Anthropic's dialect."""
    policy = a_policy(upstream.base_url)
    claude = {
        "kind": "anthropic",
        "base_url": upstream.base_url.removesuffix("/v1"),
        "api_key": "sk-ant-secret",
        "max_tokens": 777,
    }
    policy["backends"]["claude"] = claude
    policy["models"]["claude"] = {"targets": [{"backend": "claude", "model": "claude-x"}]}
    async with serving(tmp_path / "policies", policy) as running:
        yield running


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gateway.url, auth_token=KEY, max_retries=0) as client:
        yield client


async def post(gateway: Gateway, body: Any, path: str = "/v1/messages", **headers: str) -> httpx.Response:
    return await gateway.http.post(path, json=body, headers=headers)


# Anthropic's clients


async def test_a_whole_message(client: anthropic.AsyncAnthropic) -> None:
    message = await client.messages.create(model="fake", **ASK)
    assert [block.to_dict() for block in message.content] == [
        {"type": "text", "text": "one two three", "citations": None}
    ]
    assert (message._request_id or "").startswith("req_")
    assert (message.model, message.stop_reason) == ("fake", "end_turn")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (1, 3)


async def test_a_stream(client: anthropic.AsyncAnthropic) -> None:
    async with client.messages.stream(model="fake", **ASK) as answer:
        assert [text async for text in answer.text_stream] == ["one", " two", " three"]
        message = await answer.get_final_message()
    assert (message.model, message.stop_reason) == ("fake", "end_turn")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (1, 3)


async def test_an_openai_server_behind_it(upstream: FakeUpstream, client: anthropic.AsyncAnthropic) -> None:
    upstream.scripts = [stream(*answer_events("Hel", "lo"))]
    async with client.messages.stream(
        model="up", system="Be brief.", stop_sequences=["END"], tools=TOOLS, **ASK
    ) as answer:
        assert await answer.get_final_text() == "Hello"
    [request] = upstream.requests
    assert request.path == "/v1/chat/completions"
    sent = request.json()
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, *ASK["messages"]]
    assert (sent["max_completion_tokens"], sent["stop"]) == (100, ["END"])
    assert sent["tools"][0]["function"]["name"] == "get_weather"


@pytest.mark.parametrize("name", ["tool_use", "thinking", "refusal"])
async def test_anthropic_behind_it(
    upstream: FakeUpstream, client: anthropic.AsyncAnthropic, name: str
) -> None:
    upstream.scripts = [stream(recorded(f"{name}.sse"))]
    async with client.messages.stream(model="claude", **ASK) as answer:
        message = await answer.get_final_message()
    said = {block.type: block for block in message.content}
    match name:
        case "tool_use":
            assert message.stop_reason == "tool_use"
            calls = [block.input for block in message.content if block.type == "tool_use"]
            assert calls == [{"location": "San Francisco, CA"}, {}]
        case "thinking":
            assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
            assert list(said) == ["thinking", "redacted_thinking", "text"]
        case _:
            assert message.stop_reason == "refusal"
            assert message.stop_details is not None
    assert upstream.requests[0].path == "/v1/messages"
    assert upstream.requests[0].headers["x-api-key"] == "sk-ant-secret"


async def test_tokens_are_counted(gateway: Gateway, client: anthropic.AsyncAnthropic) -> None:
    few = await client.messages.count_tokens(model="fake", messages=ASK["messages"])
    many = await client.messages.count_tokens(
        model="fake", messages=[{"role": "user", "content": "Hello there. " * 100}]
    )
    assert 0 < few.input_tokens < many.input_tokens
    answer = await post(gateway, {"model": "fake", "messages": 5}, "/v1/messages/count_tokens")
    assert (answer.status_code, answer.json()["type"]) == (400, "error")


# Their errors


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        ({"model": "fake", "messages": ASK["messages"]}, 400, "invalid_request_error", "max_tokens"),
        ({"model": "none", **ASK}, 404, "not_found_error", "none"),
        ({"model": "down", **ASK}, 503, "overloaded_error", "down"),
        (b"{", 400, "invalid_request_error", "JSON"),
    ],
)
async def test_errors_have_anthropics_shape(
    gateway: Gateway, body: Any, status: int, kind: str, words: str
) -> None:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    answer = await gateway.http.post("/v1/messages", content=raw)
    told = answer.json()
    assert (answer.status_code, told["type"], told["error"]["type"]) == (status, "error", kind)
    assert words in told["error"]["message"]
    assert told["request_id"] == answer.headers["x-request-id"]


async def test_a_wrong_key_is_told_in_anthropics_shape(gateway: Gateway) -> None:
    answer = await post(gateway, {"model": "fake", **ASK}, authorization="Bearer tg-wrong")
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")


async def test_a_broken_stream_ends_in_an_error(
    upstream: FakeUpstream, client: anthropic.AsyncAnthropic
) -> None:
    cut = recorded("text.sse").partition(b"event: content_block_stop")[0]
    upstream.scripts = [(*stream(cut, whole=False), Action.CLOSE)]
    heard = []
    with pytest.raises(anthropic.APIStatusError, match=r"broke off|before the answer was complete"):
        async with client.messages.stream(model="claude", **ASK) as answer:
            async for text in answer.text_stream:
                heard.append(text)  # noqa: PERF401
    assert "".join(heard) == "Hello, Zoë! 👋"


# OpenAI's clients in front of Anthropic


async def test_openais_client(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [stream(recorded("tool_use.sse")), reply(recorded("text.json"))]
    http = httpx.AsyncClient(verify=False, trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0, http_client=http
    ) as client:
        ask: Any = {"model": "claude", "messages": ASK["messages"]}
        events = [e async for e in await client.chat.completions.create(stream=True, **ask)]
        whole = await client.chat.completions.create(**ask)
        with pytest.raises(openai.BadRequestError, match="does not support 'logprobs'"):
            await client.chat.completions.create(logprobs=True, **ask)
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(e.choices[0].delta.content or "" for e in events) == "Let me look that up."
    assert events[-1].choices[0].finish_reason == "tool_calls"
    assert whole.choices[0].message.content == "The capital of France is Paris."
    assert whole.model == "claude"
    assert whole.usage is not None
    assert whole.usage.total_tokens == 24
    assert upstream.requests[0].json()["max_tokens"] == 777


# The list of models


async def test_anthropics_client_lists_the_models_page_by_page(
    gateway: Gateway, client: anthropic.AsyncAnthropic
) -> None:
    ids = [model["id"] for model in (await gateway.http.get("/v1/models")).json()["data"]]
    found = [model async for model in client.models.list(limit=2)]
    assert [model.id for model in found] == ids
    assert len(ids) > 2
    assert {(model.type, model.display_name == model.id) for model in found} == {("model", True)}
    assert all(model.created_at.year >= 2025 for model in found)
    backwards = await client.models.list(limit=1, before_id=ids[2])
    assert [model.id for model in backwards.data] == [ids[1]]
    assert (backwards.has_more, backwards.first_id) == (True, ids[1])
    assert (await client.models.retrieve("claude")).id == "claude"


async def test_its_errors_about_models_are_anthropics(client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        await client.models.retrieve("none")
    assert (caught.value.request_id or "").startswith("req_")
    assert caught.value.body["type"] == "error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match="limit"):
        await client.models.list(limit=0)
    with pytest.raises(anthropic.BadRequestError, match="after_id"):
        await client.models.list(after_id="none")


# Programs that speak this API


BILLING = "x-anthropic-billing-header: cc_version=2.1.197.cc4; cc_entrypoint=cli;"


@pytest.mark.parametrize(
    "system", [[BILLING, "You are an agent."], BILLING + "\nYou are an agent.", [BILLING]]
)
async def test_what_a_program_says_of_itself_is_not_in_the_prompt(
    upstream: FakeUpstream, gateway: Gateway, system: str | list[str]
) -> None:
    """Claude Code's first block changes with each conversation, and no cached prefix would reach beyond it."""
    blocks = system if isinstance(system, str) else [{"type": "text", "text": text} for text in system]
    answer = await post(gateway, {**ASK, "model": "up", "system": blocks})
    assert answer.status_code == 200
    prompts = [one["content"] for one in upstream.requests[0].json()["messages"] if one["role"] == "system"]
    assert prompts == ([] if system == [BILLING] else ["You are an agent."])
    receipt = (await gateway.http.get(f"/v1/requests/{answer.headers['request-id']}")).json()
    assert receipt["stages"]["client"] == {"said": BILLING}
    upstream.scripts = [reply(recorded("text.json"))]
    await post(gateway, {**ASK, "model": "claude", "system": blocks})
    assert upstream.requests[-1].json()["system"] == blocks, "its maker's servers get it as it is"


@pytest.mark.parametrize("content", ["Agents: none.", [{"type": "text", "text": "Agents: none."}]])
async def test_instructions_before_the_first_answer_are_part_of_the_prompt(
    upstream: FakeUpstream, gateway: Gateway, content: Any
) -> None:
    """Claude Code sends the same ones behind each conversation's first words; cached prefixes end at these."""
    turns = [
        {"role": "user", "content": "One?"},
        {"role": "system", "content": content},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "Two?"},
        {"role": "system", "content": "From now on be loud."},
    ]
    prompt = {"role": "system", "content": "You are an agent.\n\nAgents: none."}
    for length in (2, 5):
        await post(gateway, {**ASK, "model": "up", "system": "You are an agent.", "messages": turns[:length]})
        rest = [turn for turn in turns[:length] if turn is not turns[1]]
        assert upstream.requests[-1].json()["messages"] == [prompt, *rest]
    await post(gateway, {**ASK, "model": "up", "messages": turns[:2]})
    alone = {"role": "system", "content": "Agents: none."}
    assert upstream.requests[-1].json()["messages"] == [alone, turns[0]]
    upstream.scripts = [reply(recorded("text.json"))]
    await post(gateway, {**ASK, "model": "claude", "messages": turns})
    assert upstream.requests[-1].json()["messages"] == turns, (
        "Anthropic's own API takes them where they stand"
    )


@pytest.mark.parametrize(
    "system",
    [
        f"Explain this: {BILLING}",
        f"{BILLING} is your user. Never tell anybody the password.",
        "x-anthropic-billing-header: You are a bank's assistant.\nNever tell anybody the password.",
        "x-anthropic-billing-header:\nBe brief.",
    ],
)
async def test_a_prompt_that_only_speaks_of_it_stays(
    upstream: FakeUpstream, gateway: Gateway, system: str
) -> None:
    """An application may begin its prompt with what its user has entered as a name."""
    answer = await post(gateway, {**ASK, "model": "up", "system": system})
    assert upstream.requests[0].json()["messages"][0]["content"] == system
    receipt = (await gateway.http.get(f"/v1/requests/{answer.headers['request-id']}")).json()
    assert "client" not in receipt["stages"]


@pytest.mark.parametrize("method", ["HEAD", "GET"])
async def test_a_program_may_look_whether_anybody_is_there(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as stranger:
        answer = await stranger.request(method, "/")
    assert answer.status_code == 200
    assert answer.content == (b"" if method == "HEAD" else b'{"status":"alive"}')
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
