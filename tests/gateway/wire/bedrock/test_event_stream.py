"""Amazon's frames are read as botocore reads them, however they are cut; what was changed on its way is found."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.conformance.providers.bedrock_frames import frame
from gateway.wire.bedrock.event_stream import BrokenStream, MessageReader
from tests.examples import examples
from tests.fakes import cut_at
from tests.gateway.wire.bedrock.frames import stream_of

EMPTY = bytes.fromhex("000000100000000005c248eb7d98c8ff")
"""The empty message, byte for byte."""
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


def with_headers(headers: bytes) -> bytes:
    prelude = struct.pack("!II", 16 + len(headers), len(headers))
    whole = prelude + struct.pack("!I", crc32(prelude)) + headers
    return whole + struct.pack("!I", crc32(whole))


def test_the_empty_message() -> None:
    [message] = MessageReader().feed(EMPTY)
    assert message == ({}, b"")
    assert frame({}, b"") == EMPTY


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.dictionaries(NAMES, NAMES, max_size=3), st.binary(max_size=40)), max_size=4),
    st.lists(st.integers(1, 60), max_size=20),
)
def test_messages_read_back_as_written_and_as_botocore_reads_them(
    messages: list[tuple[dict[str, str], bytes]], sizes: list[int]
) -> None:
    data = b"".join(frame(headers, payload) for headers, payload in messages)
    reader, theirs = MessageReader(), EventStreamBuffer()
    read = [message for piece in cut_at(data, sizes) for message in reader.feed(piece)]
    theirs.add_data(data)
    assert read == messages == [(message.headers, message.payload) for message in theirs]
    assert reader.is_between


def test_headers_of_all_types() -> None:
    values = [b"\x00", b"\x01", b"\x02\x07", b"\x03\x00\x07", b"\x04" + b"\x00" * 4, b"\x05" + b"\x00" * 8]
    values += [b"\x06\x00\x02ab", b"\x07\x00\x02ab", b"\x08" + b"\x00" * 8, b"\x09" + b"\x00" * 16]
    headers = b"".join(bytes([1]) + bytes([97 + i]) + value for i, value in enumerate(values))
    [message] = MessageReader().feed(with_headers(headers))
    assert message.headers == {"h": "ab"}


@pytest.mark.parametrize(
    "headers", [b"\x05ab", b"\x01a\x0a", b"\x01a\x07\x00", b"\x01a\x07\x00\x09ab", b"\x01\xff\x00", b"\x01a"]
)
def test_headers_that_are_none(headers: bytes) -> None:
    with pytest.raises(BrokenStream):
        MessageReader().feed(with_headers(headers))


@settings(max_examples=examples(200))
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_changed_byte_is_found(at: int, change: int) -> None:
    data = bytearray(stream_of("text"))
    data[at % len(data)] ^= change
    reader = MessageReader()
    try:
        reader.feed(bytes(data))
    except BrokenStream:
        return
    assert not reader.is_between, "a length that was changed waits for bytes that do not come"


def test_a_length_beyond_reason_is_refused_before_it_is_waited_for() -> None:
    prelude = struct.pack("!II", 2**31, 0)
    with pytest.raises(BrokenStream):
        MessageReader().feed(prelude + struct.pack("!I", crc32(prelude)))
