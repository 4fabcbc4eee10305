"""Lengths of sounds are those of their files, and no file takes long to look at."""

from __future__ import annotations

import struct
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.audio_seconds import FASTEST, seconds_of
from gateway.metering.encoded_file import EncodedFile
from tests.gateway.metering.files import file_of, flac, mp3, mp4, opus, wav

FRAME = 1152 / 44_100


@given(st.binary(max_size=400), st.integers(-2, 420), st.integers(-2, 420))
def test_pieces_of_a_coded_file_are_those_of_the_file(data: bytes, at: int, size: int) -> None:
    file = EncodedFile("data:," + b64encode(data).decode(), len("data:,"))
    assert file.size == len(data)
    assert file.read(at, size) == (data[at : at + size] if at >= 0 and size > 0 else b"")


def test_where_a_coded_file_is() -> None:
    assert EncodedFile.of_url("https://example.com/a.wav") is None
    assert EncodedFile.of_url("data:audio/wav,abc") is None
    for text in ("data:audio/wav;base64,QUJD", "QUJD"):
        file = EncodedFile.of_url(text)
        assert file is not None and file.read(0, 9) == b"ABC"
    assert EncodedFile("Ä!\n").read(0, 9) == b""


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (wav(3.5), 3.5),
        (wav(2, rate=44_100, channels=2), 2),
        (mp3(200), 200 * FRAME),
        (mp3(200, tag=300), 200 * FRAME),
        (mp3(200, index=400), 400 * FRAME),
        (flac(441_000), 10),
        (opus(7.25), 7.25),
        (mp4(12.5), 12.5),
        (mp4(12.5, first=True), 12.5),
        (mp4(100_000, wide=True), 100_000),
    ],
)
def test_lengths(data: bytes, seconds: float) -> None:
    assert seconds_of(file_of(data)) == pytest.approx(seconds, rel=0.01)


def test_a_stream_that_was_not_finished_lasts_as_long_as_it_is() -> None:
    data = bytearray(wav(4))
    for said in (0, 0xFFFFFFFF):
        struct.pack_into("<I", data, 40, said)
        assert seconds_of(file_of(bytes(data))) == pytest.approx(4, rel=0.01)


def test_a_head_that_lies_makes_no_sound_short() -> None:
    data = bytearray(wav(60))
    struct.pack_into("<I", data, 24, 0xFFFFFFFF)  # samples a second
    seconds = seconds_of(file_of(bytes(data)))
    assert seconds is not None and seconds >= len(data) / FASTEST * 0.99
    assert (seconds_of(file_of(mp3(2000, index=1))) or 0) >= 2000 * 417 * 8 / 448_000 * 0.99


def test_bare_samples_are_known_by_their_name() -> None:
    assert seconds_of(file_of(bytes(48_000)), "pcm16") == 1
    assert seconds_of(file_of(bytes(48_000)), "mp3") is None


def test_a_recording_that_goes_on_has_no_length() -> None:
    assert seconds_of(file_of(mp4(0))) is None


HEADS = [
    *(wav(0.01), mp3(2), mp4(1), mp4(1, wide=True), flac(9), opus(0.1)),
    *(b"\0\0\0\0ftyp", b"\0\0\0\1ftyp" + bytes(16), b"RIFF\0\0\0\0WAVE", b"ID3", b"\xff\xfb\x90\xc4" * 1500),
]


@given(st.sampled_from(HEADS), st.integers(0, 60), st.binary(max_size=80))
def test_any_bytes_have_a_length_or_none(head: bytes, kept: int, tail: bytes) -> None:
    for data in (head[:kept] + tail, head + tail):
        seconds = seconds_of(file_of(data))
        assert seconds is None or seconds >= 0
