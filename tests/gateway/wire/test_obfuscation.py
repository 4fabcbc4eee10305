"""Padded events: equal lengths for other words, and nothing that a client does not understand."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

from gateway.types import Chunk, Usage
from gateway.wire.obfuscation import STEP, is_wanted, obfuscated
from gateway.wire.openai.dialect import CHAT
from tests.fakes import a_call
from tests.serving import KEY, Gateway, chat

WANTED = {"stream_options": {"include_obfuscation": True}}


def events_of(text: str, **more: bool) -> list[bytes]:
    writer = CHAT.event_writer(a_call(params=WANTED, **more))
    data = writer.event(Chunk(delta={"content": text}, finish_reason=None))
    data += writer.event(Chunk(delta={}, finish_reason="stop", usage=Usage(3, 1)))
    return (data + writer.end()).split(b"\n\n")[:-1]


@given(st.text(max_size=200))
def test_events_are_padded_and_say_the_same(text: str) -> None:
    *padded, done = events_of(text, include_usage=True)
    assert done == b"data: [DONE]"
    assert all(len(event) % STEP == 0 for event in padded)
    said = [ChatCompletionChunk.model_validate_json(event[6:]) for event in padded]
    assert said[0].choices[0].delta.content == text
    assert said[-1].usage is not None and said[-1].usage.completion_tokens == 1


def test_short_words_have_one_length() -> None:
    assert len({len(events_of(word)[0]) for word in ("a", "no", "yes", "twelve")}) == 1
    assert events_of("a")[0] != events_of("a")[0], "the letters are random"


def test_what_is_no_piece_of_an_answer_is_as_it_was() -> None:
    for data in (b": alive\n\n", b"data: [DONE]\n\n", b'event: error\ndata: {"a":1}\n\n', b""):
        assert obfuscated(data) == data
    piece = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n'
    assert obfuscated(piece).startswith(piece[:-3] + b',"obfuscation":"')
    whole = b'event: response.completed\ndata: {"type":"response.completed"}\n\n'
    assert obfuscated(piece + whole).endswith(whole)


@pytest.mark.parametrize(
    "options", [None, {}, {"include_obfuscation": False}, {"include_obfuscation": "yes"}, "x"]
)
def test_it_is_off_unless_asked_for(options: object) -> None:
    assert not is_wanted({"stream_options": options})
    assert not is_wanted({})
    writer = CHAT.event_writer(a_call(params={}))
    assert b"obfuscation" not in writer.event(Chunk(delta={"content": "Hi"}))


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_over_sockets(gateway: Gateway, path: str) -> None:
    body = chat(stream=True, **WANTED)
    if path != "/v1/chat/completions":
        del body["messages"]
        body["prompt" if path == "/v1/completions" else "input"] = "Hello"
    answer = await gateway.http.post(path, json=body)
    events = [one for one in answer.content.split(b"\n\n") if b'"obfuscation"' in one]
    assert len(events) > 1 and all(len(event) % STEP == 0 for event in events)
    parsed = [orjson.loads(event[event.index(b"{") :]) for event in events]
    if path == "/v1/responses":
        assert all(event["type"].endswith(".delta") for event in parsed)


@pytest.mark.anyio
async def test_the_official_client_reads_it(gateway: Gateway) -> None:
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
        plain = await client.chat.completions.create(**chat(stream=True))
        padded = await client.chat.completions.create(**chat(stream=True, **WANTED))
        texts = [
            [chunk.choices[0].delta.content async for chunk in one if chunk.choices]
            for one in (plain, padded)
        ]
    assert texts[0] == texts[1] and any(texts[0])
