"""Answers of Bedrock as chunks, whole and streamed; and what a client sends back of them, as the model gave it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.conformance.providers.bedrock_shapes import complaints, complaints_of_answer
from gateway.types import ChatRequest, Chunk, Usage
from gateway.wire.bedrock.events_to_chunks import BedrockChunkReader, read_usage
from gateway.wire.bedrock.request_to_body import write_request
from gateway.wire.openai.dialect import CHAT
from tests.examples import examples
from tests.fakes import a_call
from tests.gateway.wire.bedrock.frames import RECORDED, recorded
from tests.gateway.wire.conversations import ARGUMENTS, DATA, NAMES, TEXTS

WHOLE: dict[str, Any] = orjson.loads((RECORDED / "whole.json").read_bytes())


def streamed(events: list[tuple[str, Any]]) -> list[Chunk]:
    reader = BedrockChunkReader()
    return [chunk for kind, payload in events for chunk in reader.read_event(kind, payload)]


def body(chunks: list[Chunk]) -> dict[str, Any]:
    """What a caller of OpenAI's dialect gets."""
    writer = CHAT.body_writer(a_call(stream=False))
    for chunk in chunks:
        writer.add(chunk)
    whole: dict[str, Any] = orjson.loads(writer.body())
    return whole


def message(chunks: list[Chunk]) -> dict[str, Any]:
    return {name: value for name, value in body(chunks)["choices"][0]["message"].items() if value}


def test_a_text_and_its_figures() -> None:
    chunks = streamed(recorded("text"))
    assert message(chunks) == {"role": "assistant", "content": "Hello there"}
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
    assert chunks[-1].usage == Usage(
        prompt=8 + 1024 + 6, completion=2, cached=1024, cache_write=6, cache_write_1h=4
    )


def test_tool_calls() -> None:
    chunks = streamed(recorded("tools"))
    assert [(call["id"], call["function"]) for call in message(chunks)["tool_calls"]] == [
        ("tooluse_kZJMlvQmRJ6eAyJE5GIl7Q", {"name": "weather", "arguments": '{"city":"Bonn"}'}),
        ("tooluse_2", {"name": "now", "arguments": "{}"}),
    ]
    assert body(chunks)["choices"][0]["finish_reason"] == "tool_calls"


def test_thoughts() -> None:
    assert message(streamed(recorded("thinking"))) == {
        "role": "assistant",
        "content": "Four",
        "reasoning_content": "Two and two.",
        "thinking_blocks": [
            {"type": "thinking", "thinking": "Two and two.", "signature": "RXRWCg=="},
            {"type": "redacted_thinking", "data": "c2VjcmV0"},
        ],
    }


def test_what_a_guardrail_said() -> None:
    [choice] = body(streamed(recorded("guardrail")))["choices"]
    assert choice["finish_reason"] == "content_filter"
    assert "inputAssessment" in choice["extra_content"]["bedrock"]["trace"]["guardrail"]


def test_a_whole_answer() -> None:
    assert complaints_of_answer(WHOLE) == ""
    chunks = [*BedrockChunkReader().read_answer(WHOLE)]
    told = body(chunks)
    assert message(chunks)["thinking_blocks"][0]["signature"] == "c2ln"
    assert message(chunks)["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":"Ulm"}'}
    assert told["usage"]["total_tokens"] == 28
    assert told["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        (None, None),
        ({"inputTokens": 1}, None),
        ({"inputTokens": "1", "outputTokens": 2}, None),
        ({"inputTokens": 1, "outputTokens": 2}, Usage(1, 2)),
        ({"inputTokens": 10**12, "outputTokens": 2}, None),
    ],
)
def test_usage(raw: object, usage: Usage | None) -> None:
    assert read_usage(raw) == usage


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("contentBlockDelta", {}),
        ("contentBlockDelta", {"contentBlockIndex": "0", "delta": {"text": "x"}}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": 7}}),
        ("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": {"name": 7, "toolUseId": "x"}}}),
        ("messageStop", {}),
    ],
)
def test_nonsense_is_told_apart(kind: str, payload: Any) -> None:
    with pytest.raises((KeyError, TypeError, AttributeError)):
        streamed([(kind, payload)])


# Round trips


@st.composite
def answers(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The blocks of one answer: thoughts, a text, tool calls."""
    blocks: list[dict[str, Any]] = []
    if draw(st.booleans()):
        thought = {"text": draw(TEXTS), "signature": draw(DATA)}
        blocks.append({"reasoningContent": {"reasoningText": thought}})
    if draw(st.booleans()):
        blocks.append({"reasoningContent": {"redactedContent": draw(DATA)}})
    calls = draw(st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3))
    if not calls or draw(st.booleans()):
        blocks.append({"text": draw(TEXTS)})
    return blocks + [
        {"toolUse": {"toolUseId": f"tooluse_{i}", "name": name, "input": args}}
        for i, (name, args) in enumerate(calls)
    ]


def as_events(blocks: list[dict[str, Any]], cut: int) -> list[tuple[str, Any]]:
    """The stream that the blocks would have come in, each text in two pieces."""
    events: list[tuple[str, Any]] = [("messageStart", {"role": "assistant"})]

    def pieces(index: int, text: str, made: Any) -> None:
        events.extend(
            ("contentBlockDelta", {"contentBlockIndex": index, "delta": made(piece)})
            for piece in (text[:cut], text[cut:])
            if piece
        )

    for index, block in enumerate(blocks):
        match block:
            case {"text": text}:
                pieces(index, text, lambda piece: {"text": piece})
            case {"toolUse": {"input": arguments, **call}}:
                events.append(("contentBlockStart", {"contentBlockIndex": index, "start": {"toolUse": call}}))
                written = orjson.dumps(arguments).decode() if arguments else ""
                pieces(index, written, lambda piece: {"toolUse": {"input": piece}})
            case {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}:
                pieces(index, text, lambda piece: {"reasoningContent": {"text": piece}})
                signed = {"reasoningContent": {"signature": signature}}
                events.append(("contentBlockDelta", {"contentBlockIndex": index, "delta": signed}))
            case {"reasoningContent": hidden}:
                events.append(
                    ("contentBlockDelta", {"contentBlockIndex": index, "delta": {"reasoningContent": hidden}})
                )
        events.append(("contentBlockStop", {"contentBlockIndex": index}))
    reason = "tool_use" if any("toolUse" in block for block in blocks) else "end_turn"
    return [*events, ("messageStop", {"stopReason": reason})]


@settings(max_examples=examples(300))
@given(answers(), st.integers(0, 9))
def test_what_a_client_sends_back_is_what_the_model_said(blocks: list[dict[str, Any]], cut: int) -> None:
    reason = "tool_use" if any("toolUse" in block for block in blocks) else "end_turn"
    usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
    content = {"message": {"role": "assistant", "content": blocks}}
    whole = {"output": content, "stopReason": reason, "usage": usage, "metrics": {"latencyMs": 1}}
    assert complaints_of_answer(whole) == ""
    for chunks in ([*BedrockChunkReader().read_answer(whole)], streamed(as_events(blocks, cut))):
        said = body(chunks)["choices"][0]["message"]
        question = {"role": "user", "content": "Q"}
        sent = write_request(ChatRequest("m", messages=(question, said, question)), "m")
        assert complaints(sent) == ""
        assert sent["messages"][1]["content"] == blocks
