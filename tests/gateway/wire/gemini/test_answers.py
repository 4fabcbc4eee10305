"""Answers of Gemini as chunks, whole and streamed; and what a client sends back of them, as Gemini gave it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import ContentPolicy, UpstreamFailed
from gateway.types import ChatRequest, Chunk, TokenEstimate, Usage
from gateway.wire import sse
from gateway.wire.gemini.answers_to_chunks import GeminiChunkReader, read_usage
from gateway.wire.gemini.chunks_to_answers import GeminiBodyWriter
from gateway.wire.gemini.request_to_body import write_request
from gateway.wire.openai.dialect import CHAT
from tests.examples import examples
from tests.fakes import a_call
from tests.gateway.wire.conversations import ARGUMENTS, NAMES, TEXTS

RECORDED = Path(__file__).parents[3] / "recorded" / "gemini"


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def streamed(*events: dict[str, Any]) -> list[Chunk]:
    reader = GeminiChunkReader("gemini")
    return [chunk for event in events for chunk in reader.read_event(event)]


def from_file(name: str) -> list[Chunk]:
    if name.endswith(".json"):
        return [*GeminiChunkReader("gemini").read_answer(orjson.loads(recorded(name)))]
    return streamed(*map(orjson.loads, sse.EventReader().feed(recorded(name))))


def body(chunks: list[Chunk]) -> dict[str, Any]:
    """What a caller of OpenAI's dialect gets."""
    writer = CHAT.body_writer(a_call(stream=False))
    for chunk in chunks:
        writer.add(chunk)
    whole: dict[str, Any] = orjson.loads(writer.body())
    return whole


def message(chunks: list[Chunk]) -> dict[str, Any]:
    return {name: value for name, value in body(chunks)["choices"][0]["message"].items() if value}


def test_a_text() -> None:
    chunks = from_file("text.sse")
    assert [chunk.delta for chunk in chunks] == [
        {"role": "assistant", "content": "Hello"},
        {"content": " there"},
    ]
    assert chunks[-1].finish_reason == "stop"
    assert chunks[-1].usage == Usage(prompt=8, completion=2)
    assert {chunk.envelope["id"] for chunk in chunks} == {"chatcmpl-hT4yaK3-Bo2k1MkP"}


def test_a_whole_answer_with_all_that_may_come_beside_it() -> None:
    whole = body(from_file("text.json"))
    [choice] = whole["choices"]
    assert choice["message"]["content"] == "Hello there"
    assert choice["logprobs"]["content"] == [
        {
            "token": "Hello",
            "logprob": -0.05,
            "bytes": [*b"Hello"],
            "top_logprobs": [
                {"token": "Hello", "logprob": -0.05, "bytes": [*b"Hello"]},
                {"token": "Hi", "logprob": -3.1, "bytes": [*b"Hi"]},
            ],
        }
    ]
    sources = choice["extra_content"]["google"]["citationMetadata"]["citationSources"]
    assert sources[0]["uri"] == "https://x.example/hello"
    details = whole["usage"]["prompt_tokens_details"]
    assert details == {"cached_tokens": 1024, "image_tokens": 258}


def test_thoughts() -> None:
    chunks = from_file("thinking.sse")
    assert message(chunks) == {
        "role": "assistant",
        "content": "Four",
        "reasoning_content": "**Counting**\n\nTwo and two.",
        "extra_content": {"google": {"thought_signature": "EpwCCpkCAb4+9vs="}},
    }
    assert chunks[-1].usage == Usage(prompt=9, completion=33, reasoning=31)


def test_tool_calls_and_their_signature() -> None:
    chunks = from_file("tools.sse")
    assert chunks[-1].finish_reason == "tool_calls"
    calls = message(chunks)["tool_calls"]
    assert [(call["id"], call["function"]) for call in calls] == [
        ("j8k2m1", {"name": "weather", "arguments": '{"city":"Bonn"}'}),
        ("j8k2m2", {"name": "weather", "arguments": '{"city":"Ulm"}'}),
    ]
    assert calls[0]["extra_content"] == {"google": {"thought_signature": "EjQKMgEMOdbH"}}
    assert "extra_content" not in calls[1]


def test_calls_without_ids_get_some_of_their_own() -> None:
    parts = [{"functionCall": {"name": "f"}}, {"functionCall": {"name": "f", "args": {}}}]
    chunks = streamed({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})
    calls = message(chunks)["tool_calls"]
    assert len({call["id"] for call in calls}) == 2
    assert [call["function"]["arguments"] for call in calls] == ["{}", "{}"]


def test_an_answer_that_its_filters_end() -> None:
    chunks = from_file("safety.sse")
    [choice] = body(chunks)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("First you", "content_filter")
    assert choice["extra_content"]["google"]["safetyRatings"][0]["blocked"] is True


def test_a_prompt_that_its_filters_block() -> None:
    with pytest.raises(ContentPolicy) as caught:
        from_file("blocked.json")
    told = caught.value.body()["error"]
    assert (caught.value.status, told["code"]) == (400, "content_filter")
    assert told["innererror"]["code"] == "PROHIBITED_CONTENT"
    assert told["innererror"]["safety_ratings"][0] == {
        "category": "HARM_CATEGORY_DANGEROUS_CONTENT",
        "probability": "HIGH",
        "blocked": True,
    }


def test_of_a_filters_verdict_nothing_is_told_but_words() -> None:
    """The message is scrubbed, and these are not: a key that a server writes into them would leave as it is."""
    key = "AIzaSyD-0123456789abcdefghijklmnopqrs"
    rated = [{"category": key, "probability": "HIGH"}, {"category": "HARM", "probability": {"x": key}}]
    with pytest.raises(ContentPolicy) as caught:
        streamed({"promptFeedback": {"blockReason": key, "safetyRatings": rated}})
    assert caught.value.details == {"innererror": {"safety_ratings": []}}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("RECITATION", "content_filter"),
        ("SPII", "content_filter"),
        ("OTHER", "stop"),
        ("INVENTED_TOMORROW", "stop"),
    ],
)
def test_reasons_to_end(reason: str, expected: str) -> None:
    [chunk] = streamed({"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": reason}]})
    assert chunk.finish_reason == expected


def test_a_call_that_the_model_garbled_is_its_failure() -> None:
    with pytest.raises(UpstreamFailed) as caught:
        streamed({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]})
    assert caught.value.code == "upstream_malformed"


def test_several_candidates() -> None:
    def said(index: int, text: str, **more: Any) -> dict[str, Any]:
        return {"index": index, "content": {"parts": [{"text": text}]}, **more}

    chunks = streamed(
        {"candidates": [said(0, "a"), said(1, "b")]},
        {"candidates": [said(1, "c", finishReason="STOP")]},
        {"candidates": [said(0, "d", finishReason="STOP")]},
    )
    assert [choice["message"]["content"] for choice in body(chunks)["choices"]] == ["ad", "bc"]


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        (None, None),
        ({}, None),
        ({"promptTokenCount": -1}, None),
        ({"promptTokenCount": "8"}, None),
        ({"promptTokenCount": 8}, Usage(8, 0)),
        ({"promptTokenCount": 8, "toolUsePromptTokenCount": 5, "candidatesTokenCount": 2}, Usage(13, 2)),
        ({"promptTokenCount": 10**12}, None),
    ],
)
def test_usage(raw: object, usage: Usage | None) -> None:
    assert read_usage(raw) == usage


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"promptTokenCount": 8, "candidatesTokenCount": 2, "thoughtsTokenCount": -5}, (8, 2, None)),
        ({"promptTokenCount": 8, "candidatesTokenCount": 2, "cachedContentTokenCount": 10**9}, (11, 0, None)),
        ({"promptTokenCount": 8, "candidatesTokenCount": 2, "toolUsePromptTokenCount": -3}, (8, 2, None)),
        ({"promptTokenCount": 8, "candidatesTokenCount": 2, "toolUsePromptTokenCount": 5}, (8, 2, 5)),
    ],
)
def test_a_caller_of_googles_dialect_is_told_what_was_counted(raw: dict[str, int], told: Any) -> None:
    call = a_call(stream=False)
    call.estimate = TokenEstimate(11, 5, 5)
    writer = GeminiBodyWriter(call)
    candidate = {"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}
    for chunk in GeminiChunkReader("g", native=True).read_event(
        {"candidates": [candidate], "usageMetadata": raw}
    ):
        writer.add(chunk)
    usage = orjson.loads(writer.body())["usageMetadata"]
    assert "thoughtsTokenCount" not in usage and "cachedContentTokenCount" not in usage
    names = ("promptTokenCount", "candidatesTokenCount", "toolUsePromptTokenCount")
    assert tuple(map(usage.get, names)) == told


@pytest.mark.parametrize(
    "nonsense",
    [
        {"candidates": [7]},
        {"candidates": [{"index": "one", "content": {"parts": []}}]},
        {"candidates": [{"content": {"parts": [{"text": 7}]}}]},
        {"candidates": [{"content": {"parts": [{"functionCall": {"args": {}}}]}}]},
        {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": [1]}}]}}]},
        {"candidates": [{"finishReason": 7}]},
    ],
)
def test_nonsense_is_told_apart(nonsense: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, AttributeError)):
        streamed(nonsense)


# Round trips


@st.composite
def answers(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The parts of one answer of a model that signs what it does."""
    parts: list[dict[str, Any]] = [{"text": text} for text in draw(st.lists(TEXTS, max_size=3))]
    calls = draw(st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3))
    parts += [
        {"functionCall": {"id": f"id{i}", "name": name, "args": args}} for i, (name, args) in enumerate(calls)
    ]
    if not parts:
        parts = [{"text": draw(TEXTS)}]
    signed = next((part for part in parts if "functionCall" in part), parts[-1])
    signed["thoughtSignature"] = draw(st.from_regex(r"[A-Za-z0-9+/]{4,12}", fullmatch=True))
    return parts


@settings(max_examples=examples(300))
@given(answers(), st.lists(st.integers(0, 9), max_size=4))
def test_what_a_client_sends_back_is_what_the_model_said(
    parts: list[dict[str, Any]], cuts: list[int]
) -> None:
    bounds = [0, *sorted(min(cut, len(parts)) for cut in cuts), len(parts)]
    events: list[dict[str, Any]] = [
        {"candidates": [{"content": {"role": "model", "parts": parts[start:end]}}]}
        for start, end in pairwise(bounds)
    ]
    events[-1]["candidates"][0]["finishReason"] = "STOP"
    said = body(streamed(*events))["choices"][0]["message"]
    again = write_request(ChatRequest("m", messages=({"role": "user", "content": "Q"}, said)), "gemini-3-pro")
    texts = "".join(part["text"] for part in parts if "text" in part)
    signatures = [part["thoughtSignature"] for part in parts if "text" in part and "thoughtSignature" in part]
    whole = [{"text": texts, **({"thoughtSignature": signatures[0]} if signatures else {})}] if texts else []
    assert again["contents"][1]["parts"] == [*whole, *(part for part in parts if "functionCall" in part)]
