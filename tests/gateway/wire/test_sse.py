from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import sse
from tests.fakes import cut_at

# Newlines are part of the framing, so values hold none; everything else may occur.
values = st.binary(max_size=30).filter(lambda data: b"\n" not in data and b"\r" not in data)
newlines = st.sampled_from([b"\n", b"\r\n"])


def read(*parts: bytes) -> list[bytes]:
    reader = sse.EventReader()
    return [event for part in parts for event in reader.feed(part)]


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream's bytes, and the data of its events."""
    text, expected = b"", []
    for value in draw(st.lists(values, max_size=6)):
        newline = draw(newlines)
        noise = draw(st.sampled_from([b"", b": a comment", b":", b"event: message", b"id: 7", b"retry: 5"]))
        noise = noise + newline if noise else b""
        text += noise + b"data: " + value + newline * draw(st.integers(2, 4))
        expected.append(value)
    return text, expected


@given(bodies(), st.lists(st.integers(1, 12), max_size=40))
def test_events_are_the_same_however_the_bytes_are_cut(
    body: tuple[bytes, list[bytes]], sizes: list[int]
) -> None:
    text, expected = body
    assert read(text) == expected
    assert read(*cut_at(text, sizes)) == expected
    assert read(*(text[i : i + 1] for i in range(len(text)))) == expected


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_any_bytes_give_the_same_events_cut_or_joined(parts: list[bytes]) -> None:
    # A lone \r at the very end is held back until it is known not to be half of \r\n.
    text = b"".join(parts) + b"."
    assert read(*parts, b".") == read(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(b"data: a\n\n", [b"a"], id="one"),
        pytest.param(b"data:a\n\n", [b"a"], id="no-space"),
        pytest.param(b"data:  a\n\n", [b" a"], id="only-one-space-goes"),
        pytest.param(b"data: a\ndata: b\n\n", [b"a\nb"], id="two-lines"),
        pytest.param(b"data\n\n", [b""], id="field-without-colon"),
        pytest.param(b"data: \n\n", [b""], id="empty"),
        pytest.param(b"datax: a\n\n", [], id="another-field"),
        pytest.param(b": ping\n\n", [], id="comment"),
        pytest.param(b": ping\ndata: a\n: pong\n\n", [b"a"], id="comments-around"),
        pytest.param(b"event: x\nid: 1\ndata: a\n\n", [b"a"], id="other-fields"),
        pytest.param(b"\n\n\ndata: a\n\n\n\n", [b"a"], id="blank-lines"),
        pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"], id="crlf"),
        pytest.param(b"data: a\r\rdata: b\r\r.", [b"a", b"b"], id="cr"),
        pytest.param(b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"], id="mixed"),
        pytest.param(b"data: a\n", [], id="open-event-is-dropped"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [b"a"], id="byte-order-mark"),
        pytest.param("data: é\n\n".encode(), ["é".encode()], id="utf-8"),
    ],
)
def test_the_standards_cases(text: bytes, expected: list[bytes]) -> None:
    assert read(text) == expected
    assert read(*(text[i : i + 1] for i in range(len(text)))) == expected


def test_an_endless_event_is_refused() -> None:
    reader = sse.EventReader()
    with pytest.raises(sse.EventTooLarge):
        for _ in range(sse.MAX_EVENT // 2**20 + 1):
            reader.feed(b"data: " + b"x" * 2**20)


def test_an_event_just_under_the_limit_arrives() -> None:
    value = b"x" * (sse.MAX_EVENT - 20)
    assert read(*cut_at(b"data: " + value + b"\n\n", [2**20] * 8)) == [value]


def test_what_is_written_is_read() -> None:
    assert read(sse.event(b'{"a":1}') + sse.DONE) == [b'{"a":1}', b"[DONE]"]
