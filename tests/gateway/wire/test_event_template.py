from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.backends.anthropic_decoder import AnthropicStreamDecoder
from gateway.backends.openai_decoder import OpenAIStreamDecoder
from gateway.backends.openai_errors import Outage
from gateway.types import Chunk
from gateway.wire.event_template import EventTemplate
from gateway.wire.openai.dialect import CHAT
from tests.fakes import a_call


def event(text: Any, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **more.pop("choice", {})}
    return {"id": "x", "created": 1, "choices": [choice], **more}


def learned(data: bytes) -> EventTemplate:
    template = EventTemplate(CHAT.read_event)
    (chunk,) = CHAT.read_event(orjson.loads(data))
    template.learn(data, chunk)
    return template


@pytest.mark.parametrize(
    ("other", "matches"),
    [
        (event("b"), True),
        (event('"}\n\\é'), True),
        (event(""), False),
        (event(None), False),
        (event("b", created=2), False),
        (event("b", choice={"index": 1}), False),
        (event("b", choice={"finish_reason": "stop"}), False),
        (event("b", usage={"prompt_tokens": 1, "completion_tokens": 1}), False),
    ],
)
@pytest.mark.parametrize("written", [orjson.dumps, lambda value: json.dumps(value).encode()])
def test_what_differs_by_its_text_alone_matches(other: dict[str, Any], matches: bool, written: Any) -> None:
    template = learned(written(event("a")))
    chunk = template.chunk(written(other))
    assert (chunk is not None) is matches
    if chunk is not None:
        assert [chunk] == [*CHAT.read_event(other)]
    part = b"data: " + written(other) + b"\n\n"
    found = template.texts(part * 2 + b"data: more", 10**6)
    assert found == (([next(iter((chunk.delta or {}).values()))] * 2, 2 * len(part)) if chunk else ((), 0))


@pytest.mark.parametrize(
    ("part", "count"),
    [
        (b"data: %b\n\ndata: %b\n\n", 2),
        (b"data: %b\n\ndata: %b", 1),
        (b"data: %b\n\ndata: %b\n", 1),
        (b"data: %b\n\n: ping\n\n", 1),
        (b"data: %b\n\n: ping\n\ndata: %b\n\n", 0),
        (b"data: %b\n\ndata: %b\r\n\r\ndata: %b\n\n", 0),
        (b": %b\n\ndata: %b\n\n", 0),
        (b"data: %b\n", 0),
        (b"data: %b", 0),
        (b"data:%b\n\n", 0),
        (b"data: %b\r\n\r\n", 0),
        (b"%b\n\n", 0),
    ],
)
def test_the_texts_of_whole_events_of_one_line_are_read_in_one_go(part: bytes, count: int) -> None:
    template = learned(orjson.dumps(event("a")))
    data = orjson.dumps(event("b"))
    texts, end = template.texts(part % ((data,) * part.count(b"%b")), 10**6)
    assert [*texts] == ["b"] * count
    assert end == count * len(b"data: \n\n" + data)


@pytest.mark.parametrize(
    "inside",
    [
        b'"b","role":"tool"',
        b'"b"},"finish_reason":"stop","x":{"y":"z"',
        b'"b" "c"',
        b"1",
        b'["b"]',
        b'"b',
        b"",
    ],
)
def test_more_than_a_string_in_its_place_does_not(inside: bytes) -> None:
    data = orjson.dumps(event("a"))
    prefix, suffix = data.split(b'"a"')
    template = learned(data)
    assert template.chunk(prefix + inside + suffix) is None
    whole = b"data: " + data + b"\n\n"
    assert template.texts(whole + b"data: " + prefix + inside + suffix + b"\n\n" + whole, 10**6) == ((), 0)


INSIDE = st.lists(st.sampled_from([b"a", b'"', b"\\", b",", b"\n", b"[", b"]", b"{", b"}", b":"]), max_size=5)


@given(st.lists(INSIDE.map(b"".join), min_size=1, max_size=5))
@example([b"a\\", b"b", b'c","d'])
@example([b'a",["b', b"c", b'd"],"e'])
@example([b'a",\n"b', b"c"])
@example([b"a", b""])
@example([b"a\\\\", b'\\"'])
def test_what_only_looks_like_texts_side_by_side_does_not_match(inside: list[bytes]) -> None:
    data = orjson.dumps(event("a"))
    part = b"".join(b"data: " + data.replace(b'"a"', b'"%b"' % one) + b"\n\n" for one in inside)
    try:
        expected = [orjson.loads(b'"%b"' % one) for one in inside]
    except orjson.JSONDecodeError:
        expected = []
    found = (expected, len(part)) if expected and all(expected) else ((), 0)
    assert learned(data).texts(part, 10**6) == found


def test_so_much_of_a_part_and_no_more() -> None:
    data = b"data: %b\n\n" % orjson.dumps(event("a"))
    assert learned(data[6:-2]).texts(data * 9, 3 * len(data) + 8) == (["a"] * 3, 3 * len(data))


def test_an_event_of_several_lines_teaches_nothing() -> None:
    data = orjson.dumps(event("a")).replace(b",", b",\n")
    assert learned(data).chunk(data) is None


@pytest.mark.parametrize(
    "data",
    [
        orjson.dumps(event("x")),  # the id has the same bytes
        b'{"choices":[{"index":0,"delta":{"content":"a","content":"b"},"n":"b"}]}',
        orjson.dumps(event("a", usage={"prompt_tokens": 1, "completion_tokens": 1})),
        orjson.dumps(event("a", choice={"finish_reason": "stop"})),
        orjson.dumps(event("a", choice={"logprobs": {"content": [{"token": "t", "logprob": -1}]}})),
        orjson.dumps(event("a", choice={"delta": {"role": "assistant", "content": "a"}})),
    ],
)
def test_where_the_text_is_not_all_nothing_is_learned(data: bytes) -> None:
    assert learned(data).chunk(data) is None


def test_a_field_given_twice_keeps_its_last_value() -> None:
    def data(text: bytes) -> bytes:
        return b'{"choices":[{"index":0,"delta":{"content":"a","content":%b}}]}' % text

    template = learned(data(b'"b"'))
    chunk = template.chunk(data(b'"c"'))
    assert chunk is not None
    assert chunk.delta == {"content": "c"}


def test_events_that_never_match_are_not_looked_into_for_ever() -> None:
    template = EventTemplate(CHAT.read_event)
    for number in range(20):
        value = event("a", obfuscation=str(number))
        template.learn(orjson.dumps(value), next(iter(CHAT.read_event(value))))
        assert template.chunk(orjson.dumps(event("a", obfuscation=f"{number} more"))) is None
    assert template.chunk(orjson.dumps(event("b", obfuscation="19"))) is None


texts = st.text(st.sampled_from('ab"\\é\x00\n{}:,'), max_size=4)
events = st.builds(
    event,
    texts,
    created=st.sampled_from([1, 1, 1, 2]),
    choice=st.sampled_from(
        [{}, {}, {}, {"index": 1}, {"finish_reason": "stop"}, {"logprobs": {"content": []}}, {"delta": {}}]
    )
    | st.builds(lambda text: {"delta": {"reasoning_content": text}}, texts),
)


@given(st.lists(events, max_size=12), st.sampled_from([True, False]), st.sampled_from([None, (",", ":")]))
def test_a_stream_is_read_as_its_events_are(values: list[Any], ascii_: bool, separators: Any) -> None:
    decoder = OpenAIStreamDecoder("up", CHAT, a_call(n=2))
    for value in values:
        data = json.dumps(value, ensure_ascii=ascii_, separators=separators).encode()
        assert [*decoder.feed(b"data: " + data + b"\n\n")] == [*CHAT.read_event(orjson.loads(data))]


@given(st.lists(texts.filter(bool), max_size=8))
def test_anthropics_deltas_too(parts: list[str]) -> None:
    decoder = AnthropicStreamDecoder("up", a_call(), Outage())

    def feed(value: Any) -> list[Chunk]:
        return [*decoder.feed(b"event: x\ndata: " + orjson.dumps(value) + b"\n\n")]

    feed({"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 1}}})
    feed({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    chunks = []
    for text in parts:
        chunks += feed(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        )
    assert [(chunk.delta or {})["content"] for chunk in chunks] == parts
