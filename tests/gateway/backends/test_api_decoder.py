"""Answers that are passed on are the bytes that came, however they were cut up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apis import Units
from gateway.backends.api_decoder import ApiDecoder
from gateway.errors import GatewayError, UpstreamFailed
from gateway.types import ChatRequest, Chunk
from tests.fakes import a_call, cut_at

JSON, EVENTS, SOUND = "application/json", "text/event-stream; charset=utf-8", "audio/mpeg"
USED = b'"usage": {"input_tokens": 3, "output_tokens": 4}'
DONE = b'event: transcript.text.done\ndata: {"type": "transcript.text.done", ' + USED + b"}"


def decoder(kind: str) -> ApiDecoder:
    call = a_call()
    call.request = ChatRequest("m", prompt="", api="transcription")
    return ApiDecoder("up", call, {"content-type": kind}, events=kind == EVENTS)


def decoded(kind: str, pieces: list[bytes]) -> list[Chunk]:
    one = decoder(kind)
    chunks: list[Chunk] = []
    for piece in pieces:
        chunks += one.feed(piece)
        if one.error is not None:
            raise one.error
    return [*chunks, *one.finish()]


def passed(chunks: list[Chunk], name: str = "bytes") -> bytes:
    return b"".join(chunk.delta.get(name, b"") for chunk in chunks if chunk.delta)


BLOCKS = st.sampled_from(
    [
        b": waiting",
        b"data: {}",
        DONE,
        b"data: one\ndata: two",
        b"id: 7",
        b'data: {"usage": 5}',
        b"data: \xff\xfe",
    ]
)


@given(
    blocks=st.lists(BLOCKS, min_size=1, max_size=6),
    line=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    sizes=st.lists(st.integers(1, 40), max_size=12),
    open_=st.booleans(),
)
def test_events(blocks: list[bytes], line: bytes, sizes: list[int], open_: bool) -> None:
    whole = b"".join(block.replace(b"\n", line) + line + line for block in blocks)
    whole += b"data: cut" if open_ else b""
    chunks = decoded(EVENTS, cut_at(whole, sizes))
    assert passed(chunks) == whole
    usage = chunks[-1].usage
    assert (usage is not None) == (DONE in blocks)
    assert usage is None or (usage.prompt, usage.completion) == (3, 4)


@given(data=st.binary(min_size=1, max_size=200), sizes=st.lists(st.integers(1, 40), max_size=12))
def test_sound(data: bytes, sizes: list[int]) -> None:
    chunks = decoded(SOUND, cut_at(data, sizes))
    assert passed(chunks) == data
    assert chunks[0].envelope == {"content_type": SOUND}
    assert not any(chunk.envelope for chunk in chunks[1:])


@given(sizes=st.lists(st.integers(1, 40), max_size=12))
def test_a_document_comes_whole(sizes: list[int]) -> None:
    data = b' {"text" : "\\u00fc", "duration": 3, "segments": [ ]}\n'
    (chunk,) = decoded(JSON, cut_at(data, sizes))
    assert passed([chunk], "json") == data
    assert chunk.usage is not None
    assert chunk.usage.units == Units("second", 3)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (JSON, b""),
        (JSON, b"["),
        (JSON, b"[1]"),
        (JSON, b'"text"'),
        (JSON, b'{"error": {"message": "no"}}'),
        (JSON, b"[" * 400 + b"]" * 400),
        (EVENTS, b""),
        (EVENTS, b'data: {"error": {"message": "no"}}\n\n'),
        (SOUND, b""),
    ],
)
def test_what_is_no_answer(kind: str, data: bytes) -> None:
    with pytest.raises(GatewayError):
        decoded(kind, [data] if data else [])


def test_what_came_before_an_error_is_passed_on() -> None:
    one = decoder(EVENTS)
    chunks = one.feed(
        b'data: {"delta": "a"}\n\nevent: error\ndata: {"error": {"message": "no"}}\n\ndata: more\n\n'
    )
    assert passed([*chunks]) == b'data: {"delta": "a"}\n\n'
    assert isinstance(one.error, UpstreamFailed)


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("audio/wav", "audio/wav"),
        ("audio/pcm; rate=24000", "audio/pcm; rate=24000"),
        ("Text/Plain; charset=utf-8", "Text/Plain; charset=utf-8"),
        ("text/html", "application/octet-stream"),
        ("image/svg+xml", "application/octet-stream"),
        ("audio/x; a=b\r\nset-cookie: c=d", "application/octet-stream"),
        ("", "application/octet-stream"),
    ],
)
def test_types_of_content(kind: str, sent: str) -> None:
    first: Any = decoded(kind, [b"x"])[0]
    assert first.envelope["content_type"] == sent
