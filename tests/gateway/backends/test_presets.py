"""Providers with a form of OpenAI's API of their own, scripted over real sockets: what they get, and what they say."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, get_args

import orjson
import pytest
from openai.types.chat import ChatCompletion
from pydantic import TypeAdapter, ValidationError

from gateway import errors
from gateway.policy.schema import OpenAIBackend, Target
from gateway.policy.schema.backends import PRESET_URLS, PresetName
from gateway.runtime.backends import build_backend
from gateway.types import Backend, Call, Chunk
from gateway.wire.openai.dialect import CHAT
from gateway.wire.openai.presets.table import PRESETS
from tests.fakes import FakeUpstream, a_call, reply, stream

pytestmark = pytest.mark.anyio

NAMES = sorted(get_args(PresetName))
TARGET = Target(backend="theirs", model="large")
ANSWER = {
    "id": "1",
    "created": 1,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}
CAPS = {"groq": "max_completion_tokens", "xai": "max_completion_tokens"}


class State:
    """All that ``build_backend`` asks of a worker for a server."""

    transport = None


def theirs(upstream: FakeUpstream, preset: str, **config: Any) -> Backend:
    given = {"kind": "openai", "preset": preset, "base_url": upstream.base_url, "api_key": "k-1", **config}
    return build_backend("theirs", OpenAIBackend.model_validate(given), State())  # type: ignore[arg-type]


async def ask(backend: Backend, call: Call) -> list[Chunk]:
    async with aclosing(backend.stream(call, TARGET)) as chunks:
        return [chunk async for chunk in chunks]


async def sent(upstream: FakeUpstream, preset: str, call: Call, **config: Any) -> dict[str, Any]:
    """The body that the provider gets."""
    upstream.scripts = [reply(ANSWER)]
    backend = theirs(upstream, preset, **config)
    await ask(backend, call)
    await backend.aclose()
    body: dict[str, Any] = upstream.requests[-1].json()
    return body


def body_of(chunks: list[Chunk], call: Call) -> dict[str, Any]:
    """What a caller of OpenAI's dialect gets."""
    writer = CHAT.body_writer(call)
    for chunk in chunks:
        writer.add(chunk)
    body: dict[str, Any] = orjson.loads(writer.body())
    ChatCompletion.model_validate(body)
    return body


# Addresses


@pytest.mark.parametrize("preset", NAMES)
def test_a_preset_brings_its_address_which_a_policy_may_replace(preset: PresetName) -> None:
    config = OpenAIBackend.model_validate({"kind": "openai", "preset": preset})
    assert config.base_url == PRESET_URLS[preset]
    assert preset in PRESETS
    other = {"kind": "openai", "preset": preset, "base_url": "https://proxy.example/v1"}
    assert OpenAIBackend.model_validate(other).base_url == "https://proxy.example/v1"


def test_without_a_preset_an_address_is_demanded() -> None:
    with pytest.raises(ValidationError, match="base_url"):
        TypeAdapter(OpenAIBackend).validate_python({"kind": "openai"})


# What they get


@pytest.mark.parametrize("preset", NAMES)
@pytest.mark.parametrize("given", ["max_tokens", "max_completion_tokens"])
async def test_the_cap_has_the_name_that_the_provider_knows(
    upstream: FakeUpstream, preset: str, given: str
) -> None:
    body = await sent(upstream, preset, a_call(stream=False, params={given: 7}))
    assert {name: body.get(name) for name in ("max_tokens", "max_completion_tokens") if name in body} == {
        CAPS.get(preset, "max_tokens"): 7
    }


@pytest.mark.parametrize("preset", NAMES)
async def test_what_all_take_and_what_nobody_knows_yet_is_passed_on(
    upstream: FakeUpstream, preset: str
) -> None:
    params: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["."],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
        "response_format": {"type": "json_object"},
        "of_tomorrow": {"a": 1},
    }
    call = a_call(stream=False, params=params)
    body = await sent(upstream, preset, call)
    assert {name: body[name] for name in params} == params
    assert "x-tollgate-ignored" not in call.reply_headers
    assert upstream.requests[-1].headers["authorization"] == "Bearer k-1"


@pytest.mark.parametrize(
    ("preset", "name", "value"),
    [
        ("groq", "logprobs", True),
        ("groq", "logit_bias", {"50256": -100}),
        ("groq", "n", 2),
        ("mistral", "logit_bias", {"50256": -100}),
        ("mistral", "functions", [{"name": "f"}]),
        ("deepseek", "n", 2),
        ("xai", "logit_bias", {"50256": -100}),
        ("together", "logprobs", True),
        ("cohere", "top_logprobs", 2),
        ("cohere", "n", 2),
        ("cohere", "modalities", ["text", "audio"]),
    ],
)
async def test_what_would_make_another_request_is_refused_by_name(
    upstream: FakeUpstream, preset: str, name: str, value: Any
) -> None:
    call = a_call(stream=False, n=value) if name == "n" else a_call(stream=False, params={name: value})
    backend = theirs(upstream, preset)
    with pytest.raises(errors.BadRequest) as caught:
        await ask(backend, call)
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    assert not upstream.requests
    await backend.aclose()


@pytest.mark.parametrize(
    ("preset", "params"),
    [
        ("groq", {"logprobs": False, "logit_bias": {}}),
        ("mistral", {"modalities": ["text"]}),
        ("deepseek", {"seed": None}),
        ("cohere", {"logprobs": False}),
    ],
)
async def test_nothing_is_said_of_values_that_ask_for_nothing(
    upstream: FakeUpstream, preset: str, params: dict[str, Any]
) -> None:
    call = a_call(stream=False, params=params)
    assert params.keys().isdisjoint(await sent(upstream, preset, call))
    assert "x-tollgate-ignored" not in call.reply_headers


@pytest.mark.parametrize(
    ("preset", "name", "value"),
    [
        ("groq", "metadata", {"a": "b"}),
        ("mistral", "user", "u-1"),
        ("mistral", "store", True),
        ("deepseek", "seed", 7),
        ("xai", "metadata", {"a": "b"}),
        ("together", "parallel_tool_calls", False),
        ("cohere", "user", "u-1"),
    ],
)
async def test_what_changes_no_answer_is_left_out_and_told_or_refused_by_policy(
    upstream: FakeUpstream, preset: str, name: str, value: Any
) -> None:
    call = a_call(stream=False, params={name: value})
    assert name not in await sent(upstream, preset, call)
    assert call.reply_headers["x-tollgate-ignored"] == name
    strict = theirs(upstream, preset, unsupported_fields="refuse")
    with pytest.raises(errors.BadRequest, match=name):
        await ask(strict, a_call(stream=False, params={name: value}))
    await strict.aclose()


@pytest.mark.parametrize("preset", NAMES)
async def test_developers_messages_and_usage_of_streams(upstream: FakeUpstream, preset: str) -> None:
    messages = ({"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello"})
    upstream.scripts = [reply(ANSWER)]
    backend = theirs(upstream, preset)
    await ask(backend, a_call(messages=messages))
    body = upstream.requests[-1].json()
    assert body["messages"][0]["role"] == ("developer" if preset == "openrouter" else "system")
    asks = preset in ("deepseek", "openrouter", "xai")
    assert body.get("stream_options") == ({"include_usage": True} if asks else None)
    await backend.aclose()


async def test_a_schema_that_would_not_be_held_is_refused(upstream: FakeUpstream) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    backend = theirs(upstream, "deepseek")
    with pytest.raises(errors.BadRequest, match="JSON schema"):
        await ask(backend, a_call(stream=False, params={"response_format": wanted}))
    await backend.aclose()


@pytest.mark.parametrize(("asked", "got"), [("low", "high"), ("none", "none"), ("high", "high")])
async def test_coheres_efforts(upstream: FakeUpstream, asked: str, got: str) -> None:
    body = await sent(upstream, "cohere", a_call(stream=False, params={"reasoning_effort": asked}))
    assert body["reasoning_effort"] == got


# Conversations

CONVERSATION: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "What is it like out there?", "name": "ada"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I should look.",
        "tool_calls": [
            {"id": "call_0123456789", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            {"id": "abcdefgh1", "type": "function", "function": {"name": "hear", "arguments": "{}"}},
        ],
        "annotations": [],
        "refusal": None,
    },
    {"role": "tool", "tool_call_id": "call_0123456789", "content": "Rain"},
    {"role": "tool", "tool_call_id": "abcdefgh1", "content": "Wind"},
)


async def test_mistral_gets_messages_that_it_takes(upstream: FakeUpstream) -> None:
    call = a_call(messages=CONVERSATION, stream=False)
    messages = (await sent(upstream, "mistral", call))["messages"]
    asked, called, *results = messages
    assert asked == {"role": "user", "content": CONVERSATION[0]["content"]}
    assert called.keys() == {"role", "content", "tool_calls"}
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "I should look."}]}
    assert called["content"] == [thinking]
    ids = [one["id"] for one in called["tool_calls"]]
    assert ids[1] == "abcdefgh1" and len(ids[0]) == 9 and ids[0].isalnum() and ids[0].isascii()
    assert [one["tool_call_id"] for one in results] == ids
    assert call.reply_headers["x-tollgate-ignored"] == "messages.name"


async def test_mistral_goes_on_from_a_prefix(upstream: FakeUpstream) -> None:
    messages = ({"role": "user", "content": "Count"}, {"role": "assistant", "content": "1, 2"})
    call = a_call(messages=messages, continues=True, stream=False)
    body = await sent(upstream, "mistral", call, continues=True)
    assert body["messages"][1] == {"role": "assistant", "content": "1, 2", "prefix": True}
    assert "continue_final_message" not in body and "add_generation_prompt" not in body


async def test_groq_gets_thinking_under_its_own_name(upstream: FakeUpstream) -> None:
    messages = (await sent(upstream, "groq", a_call(messages=CONVERSATION, stream=False)))["messages"]
    assert messages[1]["reasoning"] == "I should look."
    assert messages[1].keys() == {"role", "content", "tool_calls", "reasoning"}
    assert "name" not in messages[0]


@pytest.mark.parametrize(("preset", "named"), [("mistral", "output_dimension"), ("openrouter", "dimensions")])
async def test_embeddings(upstream: FakeUpstream, preset: str, named: str) -> None:
    upstream.scripts = [reply({"data": [{"index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 1}})]
    backend = theirs(upstream, preset)
    await ask(backend, a_call(prompt="Once", stream=False, embeds=True, params={"dimensions": 8}))
    assert upstream.requests[-1].json() == {"model": "large", "input": "Once", named: 8}
    await backend.aclose()


@pytest.mark.parametrize(("preset", "embeds"), [("groq", True), ("groq", False), ("cohere", False)])
async def test_paths_that_a_provider_does_not_have(upstream: FakeUpstream, preset: str, embeds: bool) -> None:
    backend = theirs(upstream, preset)
    with pytest.raises(errors.BadRequest, match="has no '/"):
        await ask(backend, a_call(prompt="Once", stream=False, embeds=embeds))
    await backend.aclose()


# What they say


async def test_mistrals_thinking_comes_as_thinking(upstream: FakeUpstream) -> None:
    parts = [
        {
            "type": "thinking",
            "thinking": [{"type": "text", "text": "Hm, "}, {"type": "text", "text": "yes."}],
        },
        {"type": "text", "text": "Yes"},
    ]
    choice = {"index": 0, "message": {"role": "assistant", "content": parts}, "finish_reason": "model_length"}
    upstream.scripts = [reply({**ANSWER, "choices": [choice]})]
    backend, call = theirs(upstream, "mistral"), a_call(stream=False)
    told = body_of(await ask(backend, call), call)["choices"][0]
    assert (told["message"]["reasoning_content"], told["message"]["content"]) == ("Hm, yes.", "Yes")
    assert told["finish_reason"] == "length"
    await backend.aclose()


async def test_mistrals_thinking_streams(upstream: FakeUpstream) -> None:
    def event(content: Any, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": {"content": content}, "finish_reason": reason}
        usage = {"usage": ANSWER["usage"]} if reason else {}
        return b"data: " + orjson.dumps({"id": "1", "choices": [choice], **usage}) + b"\n\n"

    def thought(text: str) -> list[Any]:
        return [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]

    events = [event(thought(word)) for word in ("Let", " me", " think")]
    events += [event(word) for word in ("It", " is", " so")]
    upstream.scripts = [stream(*events, event("", "stop"), b"data: [DONE]\n\n")]
    backend, call = theirs(upstream, "mistral"), a_call()
    chunks = await ask(backend, call)
    message = body_of(chunks, call)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me think", "It is so")
    assert [chunk.usage.prompt for chunk in chunks if chunk.usage] == [3]
    await backend.aclose()


async def test_groqs_usage_is_found_where_its_streams_have_it(upstream: FakeUpstream) -> None:
    choice = {"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}
    last = {"id": "1", "choices": [choice], "x_groq": {"id": "req_1", "usage": ANSWER["usage"]}}
    upstream.scripts = [stream(b"data: " + orjson.dumps(last) + b"\n\n", b"data: [DONE]\n\n")]
    backend = theirs(upstream, "groq")
    [usage] = [chunk.usage for chunk in await ask(backend, a_call()) if chunk.usage]
    assert (usage.prompt, usage.completion) == (3, 1)
    await backend.aclose()


@pytest.mark.parametrize(
    "beside", [{"prompt_cache_hit_tokens": 2, "prompt_cache_miss_tokens": 1}, {"cached_tokens": 2}]
)
async def test_what_was_cached_is_found_beside_the_details(
    upstream: FakeUpstream, beside: dict[str, int]
) -> None:
    upstream.scripts = [reply({**ANSWER, "usage": {**ANSWER["usage"], **beside}})]  # type: ignore[dict-item]
    backend = theirs(upstream, "deepseek")
    [usage] = [chunk.usage for chunk in await ask(backend, a_call(stream=False)) if chunk.usage]
    assert usage.cached == 2
    await backend.aclose()


ERRORS = {
    "mistral": (
        {
            "object": "error",
            "message": {
                "detail": [
                    {
                        "type": "extra_forbidden",
                        "loc": ["body", "of_tomorrow"],
                        "msg": "Extra inputs are not permitted",
                    }
                ]
            },
            "type": "invalid_request_error",
        },
        "of_tomorrow: Extra inputs are not permitted",
    ),
    "xai": (
        {"code": "Client specified an invalid argument", "error": "Model large does not stop."},
        "does not stop",
    ),
    "cohere": ({"message": "invalid request: no such effort"}, "no such effort"),
    "openrouter": (
        {"error": {"code": 400, "message": "large is not a valid model ID"}},
        "not a valid model ID",
    ),
    "together": (
        {"error": {"message": "bad tools", "type": "invalid_request_error", "param": "tools"}},
        "bad tools",
    ),
}


@pytest.mark.parametrize("preset", sorted(ERRORS))
async def test_why_a_provider_refused_reaches_the_caller(upstream: FakeUpstream, preset: str) -> None:
    body, told = ERRORS[preset]
    upstream.scripts = [reply(body, status=422 if preset == "mistral" else 400)]
    backend = theirs(upstream, preset)
    with pytest.raises(errors.Rejected, match=told):
        await ask(backend, a_call(stream=False))
    await backend.aclose()


async def test_files_are_documents_for_mistral(upstream: FakeUpstream) -> None:
    parts = [
        {"type": "text", "text": "Sum up."},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}},
        {"type": "file", "file": {"file_data": "https://example.com/a.pdf"}},
        {"type": "file", "file": {"file_id": "3fa85f64-5717-4562-b3fc-2c963f66afa6"}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
    ]
    body = await sent(
        upstream, "mistral", a_call(messages=({"role": "user", "content": parts},), stream=False)
    )
    assert body["messages"][0]["content"] == [
        parts[0],
        {
            "type": "document_url",
            "document_url": "data:application/pdf;base64,aGk=",
            "document_name": "a.pdf",
        },
        {"type": "document_url", "document_url": "https://example.com/a.pdf"},
        {"type": "file", "file_id": "3fa85f64-5717-4562-b3fc-2c963f66afa6"},
        parts[4],
    ]
