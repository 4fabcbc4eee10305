"""There and back: what a provider knows of a conversation, of its thoughts and tools, survives both translations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.types import ChatRequest, Chunk
from gateway.wire.anthropic import body_to_request
from gateway.wire.anthropic import request_to_body as anthropic
from gateway.wire.anthropic.events_to_chunks import AnthropicChunkReader
from gateway.wire.bedrock import request_to_body as bedrock
from gateway.wire.gemini import request_to_body as gemini
from gateway.wire.openai.chunks_to_body import OpenAIBodyWriter
from gateway.wire.openai.chunks_to_events import OpenAIEventWriter
from gateway.wire.openai.dialect import CHAT
from tests.examples import examples
from tests.fakes import a_call
from tests.gateway.wire.conversations import (
    ARGUMENTS,
    DATA,
    NAMES,
    SIGNATURES,
    TEXTS,
    THOUGHTS,
    Message,
    conversations,
    plain,
)
from tests.gateway.wire.gemini.test_requests import merged

QUESTION: Message = {"role": "user", "content": "Q"}


@st.composite
def tools(draw: st.DrawFn) -> dict[str, Any]:
    """Functions, and which of them is to be called."""
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    functions = []
    for name in names:
        properties = {key: {"type": "string"} for key in draw(st.lists(NAMES, max_size=2))}
        function = {"name": name, "parameters": {"type": "object", "properties": properties}}
        if words := draw(st.none() | TEXTS):
            function["description"] = words
        functions.append({"type": "function", "function": function})
    one = {"type": "function", "function": {"name": draw(st.sampled_from(names))}}
    return {"tools": functions, "tool_choice": draw(st.sampled_from(["auto", "none", "required", one]))}


SCALARS = st.fixed_dictionaries(
    {"max_completion_tokens": st.integers(1, 10**6)},
    optional={
        "temperature": st.floats(0, 1),
        "top_p": st.floats(0.01, 1),
        "top_k": st.integers(1, 500),
        "stop": st.lists(TEXTS, min_size=1, max_size=3),
        "user": TEXTS,
    },
)


@settings(max_examples=examples(200))
@given(conversations(sound=False), SCALARS, tools())
def test_a_request_comes_back_from_anthropics_dialect(
    messages: list[Message], scalars: dict[str, Any], tooled: dict[str, Any]
) -> None:
    params = {**scalars, **tooled}
    sent = anthropic.write_request(
        ChatRequest("m", messages=tuple(messages), params=params), "m", max_tokens=5
    )
    back = body_to_request.read_request(orjson.dumps(sent))
    assert merged(plain([*(back.messages or ())])) == merged(plain(messages))
    # To let the model choose is what it does unasked.
    assert {"tool_choice": "auto", **back.params} == {"tool_choice": "auto", **params}
    assert back.native is not None and back.native.beyond is None


@settings(max_examples=examples(200))
@given(SCALARS, tools())
def test_parameters_reach_their_places(scalars: dict[str, Any], tooled: dict[str, Any]) -> None:
    params = {**scalars, **tooled}
    request = ChatRequest("m", messages=(QUESTION,), params=params)
    config = gemini.write_request(request, "gemini-2.5-pro")
    said = config["generationConfig"]
    for name, theirs in (("temperature", "temperature"), ("top_p", "topP"), ("top_k", "topK")):
        assert said.get(theirs) == params.get(name)
    assert said["maxOutputTokens"] == params["max_completion_tokens"]
    assert said.get("stopSequences") == params.get("stop")
    declared = config["tools"][0]["functionDeclarations"]
    for tool, one in zip(params["tools"], declared, strict=True):
        function = tool["function"]
        assert (one["name"], one.get("description")) == (function["name"], function.get("description"))
        assert one["parametersJsonSchema"] == function["parameters"]
    wanted = params["tool_choice"]
    mode = config.get("toolConfig", {}).get("functionCallingConfig")
    if isinstance(wanted, dict):
        assert mode == {"mode": "ANY", "allowedFunctionNames": [wanted["function"]["name"]]}
    else:
        assert mode == {"auto": None, "none": {"mode": "NONE"}, "required": {"mode": "ANY"}}[wanted]


@settings(max_examples=examples(150))
@given(THOUGHTS, TEXTS)
def test_thoughts_go_back_to_whom_they_belong(thoughts: list[Message], text: str) -> None:
    said = {"role": "assistant", "content": text, "thinking_blocks": thoughts}
    request = ChatRequest("m", messages=(QUESTION, said, QUESTION))
    body = anthropic.write_request(request, "m", max_tokens=5)
    assert body["messages"][1]["content"] == [*thoughts, {"type": "text", "text": text}]
    blocks = bedrock.write_request(request, "m")["messages"][1]["content"]
    assert blocks == [*map(_amazons, thoughts), {"text": text}]
    # Another provider's thoughts are nothing to Gemini.
    assert gemini.write_request(request, "gemini-3-pro")["contents"][1]["parts"] == [{"text": text}]


def _amazons(thought: Message) -> Message:
    if thought["type"] == "redacted_thinking":
        return {"reasoningContent": {"redactedContent": thought["data"]}}
    text = {"text": thought["thinking"], "signature": thought["signature"]}
    return {"reasoningContent": {"reasoningText": text}}


@st.composite
def blocks(draw: st.DrawFn) -> list[Message]:
    """One answer of Anthropic's: thoughts, a text, tool calls."""
    found: list[Message] = []
    if draw(st.booleans()):
        found.append({"type": "thinking", "thinking": draw(TEXTS), "signature": draw(SIGNATURES)})
    if draw(st.booleans()):
        found.append({"type": "redacted_thinking", "data": draw(DATA)})
    calls = draw(st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3))
    if not calls or draw(st.booleans()):
        found.append({"type": "text", "text": draw(TEXTS)})
    return found + [
        {"type": "tool_use", "id": f"toolu_{i}", "name": name, "input": given}
        for i, (name, given) in enumerate(calls)
    ]


def as_events(said: list[Message], cut: int) -> Iterable[Message]:
    """The stream that the blocks would have come in, each text in two pieces."""
    usage = {"input_tokens": 3, "output_tokens": 1}
    yield {"type": "message_start", "message": {"id": "msg_1", "model": "m", "content": [], "usage": usage}}
    for index, block in enumerate(said):
        deltas: list[Message] = []
        match block:
            case {"type": "text", "text": text}:
                start = {**block, "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in (text[:cut], text[cut:])]
            case {"type": "thinking", "thinking": text, "signature": signature}:
                start = {**block, "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in (text[:cut], text[cut:])]
                deltas.append({"type": "signature_delta", "signature": signature})
            case {"type": "tool_use", "input": given}:
                start, text = {**block, "input": {}}, orjson.dumps(given).decode()
                deltas = [
                    {"type": "input_json_delta", "partial_json": piece} for piece in (text[:cut], text[cut:])
                ]
            case _:
                start = block
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    reason = "tool_use" if said[-1]["type"] == "tool_use" else "end_turn"
    yield {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 2}}
    yield {"type": "message_stop"}


def as_message(chunks: Iterable[Chunk]) -> Message:
    """What a client of OpenAI's gets of them, whole."""
    writer = OpenAIBodyWriter(CHAT.format, a_call(stream=False))
    for chunk in chunks:
        writer.add(chunk)
    said: Message = orjson.loads(writer.body())["choices"][0]["message"]
    return said


def as_streamed(chunks: Iterable[Chunk]) -> Iterable[Chunk]:
    """The same through the events of a stream in OpenAI's dialect, written and read."""
    writer = OpenAIEventWriter(CHAT.format, a_call(include_usage=True))
    sent = b"".join(map(writer.event, chunks)) + writer.end()
    for line in sent.split(b"\n\n"):
        if line.startswith(b"data: {"):
            yield from CHAT.read_event(orjson.loads(line[6:]))


@pytest.mark.parametrize("streamed", [False, True])
@settings(max_examples=examples(150))
@given(blocks(), st.integers(0, 9))
def test_what_a_client_sends_back_is_what_claude_said(streamed: bool, said: list[Message], cut: int) -> None:
    reason = "tool_use" if said[-1]["type"] == "tool_use" else "end_turn"
    whole = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": said,
        "stop_reason": reason,
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    reader = AnthropicChunkReader()
    chunks = (
        [chunk for event in as_events(said, cut) for chunk in reader.read_event(event)]
        if streamed
        else [*reader.read_answer(whole)]
    )
    for way in (chunks, [*as_streamed(chunks)]):
        message = as_message(way)
        request = ChatRequest("m", messages=(QUESTION, message, QUESTION))
        sent = anthropic.write_request(request, "m", max_tokens=5)
        assert sent["messages"][1]["content"] == said
