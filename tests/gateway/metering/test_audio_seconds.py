"""Lengths of sounds are those of their files, and no file takes long to look at."""

from __future__ import annotations

import random
import struct
import time
from array import array
from base64 import b64encode
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.audio_seconds import THOROUGH, seconds_of
from gateway.metering.encoded_file import EncodedFile
from gateway.metering.sound.wav import FASTEST
from tests.gateway.metering import hidden_sound
from tests.gateway.metering.files import TWENTY_MS, file_of, flac, mp3, mp4, opus, wav, webm

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
        (mp3(200, index=200), 200 * FRAME),
        (mp3(200, index=400), 400 * FRAME),
        (flac(441_000), 10),
        (flac(160_000, 16_000, named=True), 10),
        (b"ID3\x04\0\0\0\0\0\x05" + bytes(5) + flac(441_000), 10),
        (opus(7.3), 7.3),
        (webm(7.3), 7.3),
        (mp4(12.5), 12.5),
        (mp4(12.5, first=True), 12.5),
        (mp4(12.5, fragmented=True), 12.5),
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


def of_two(first: float, second: float) -> bytes:
    """A WAV whose first data is short: decoders go on at the next."""
    data = wav(first)
    return data + b"LIST\x02\0\0\0ab" + wav(second)[36:]


def with_formats(data: bytes) -> bytes:
    """A second format, which would make it short."""
    faster = bytearray(data[12:36])
    struct.pack_into("<I", faster, 12, 192_000)
    return data[:36] + bytes(faster) + data[36:]


def packed(data: bytes) -> bytes:
    """μ-law that calls itself 32 bits."""
    changed = bytearray(data)
    struct.pack_into("<H", changed, 20, 7)
    struct.pack_into("<H", changed, 34, 32)
    return bytes(changed)


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (of_two(0.01, 62), 62),
        (with_formats(wav(62)), 62),
        (packed(wav(31)), 62),
        (flac(62 * 16_000, 16_000, told=160), 62),
        (flac(62 * 16_000, 16_000, told=160, named=True), 62),
        (flac(62 * 16_000, 16_000, told=0), 62),
        (opus(62, told=0.01), 62),
        (webm(62), 62),
        (mp4(0.01, frames=969), 62),
        (mp4(0.01, frames=969, fragmented=True), 62),
        (mp3(2373, index=1), 62),
    ],
)
def test_what_a_head_says_makes_no_sound_short(data: bytes, seconds: float) -> None:
    assert seconds_of(file_of(data)) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize("name", hidden_sound.LONG)
def test_sound_does_not_hide(name: str) -> None:
    assert seconds_of(file_of(hidden_sound.LONG[name])) == pytest.approx(62, rel=0.01)


@pytest.mark.parametrize("name", hidden_sound.UNKNOWN)
def test_sound_that_hides_has_no_length(name: str) -> None:
    """Wherever it is looked for."""
    assert {seconds_of(file_of(hidden_sound.UNKNOWN[name])) for _ in range(20)} == {None}


@pytest.mark.parametrize("loud", [0, 1, 3, 30, 300, 3000, 20_000])
def test_samples_are_no_frames(loud: int) -> None:
    """Not of quiet sound either, whose bytes are full of what frames begin with."""
    chance = random.Random(loud)
    drawn = (round(chance.gauss(-loud / 10, loud)) for _ in range(16_000 * 5))
    samples = array("h", (max(-32_768, min(32_767, one)) for one in drawn))
    assert seconds_of(file_of(wav(0)[:40] + bytes(4) + samples.tobytes())) == pytest.approx(5)


@pytest.mark.parametrize("deviation", [5, 30, 300])
def test_packed_samples_are_no_frames(deviation: int) -> None:
    """Of μ-law, of which silence is what frames begin with."""
    chance = random.Random(deviation)
    sound = bytes(_mu_law(round(chance.gauss(0, deviation))) for _ in range(16_000 * 30))
    data = bytearray(wav(0)[:40] + bytes(4) + sound)
    struct.pack_into("<HHIIHH", data, 20, 7, 1, 16_000, 16_000, 1, 8)
    assert seconds_of(file_of(bytes(data))) == pytest.approx(30)


def _mu_law(sample: int) -> int:
    biased = min(32_635, abs(sample)) + 132
    exponent = biased.bit_length() - 8
    return ~((sample < 0) << 7 | exponent << 4 | biased >> exponent + 3 & 15) & 0xFF


def test_long_packets_do_not_hide_behind_short_ones() -> None:
    """Which of a page's packets stand for the others is chance; half of these play 2.5 ms and half 60."""
    data = bytearray(opus(62))
    for at in range(len(data)):
        if data[at] == TWENTY_MS and data[at + 1 : at + 80] == bytes(79):
            data[at] = 16 << 3 if at // 80 % 2 else 11 << 3
    looks = [seconds_of(file_of(bytes(data))) or 0 for _ in range(9)]
    assert mean(looks) == pytest.approx(62 * (2.5 + 60) / 40, rel=0.2)


def test_an_mp3_is_as_long_as_its_slow_frames() -> None:
    slow = b"\xff\xe3\x18\xc4" + bytes(68)  # 8 kbit/s at 8 kHz: 72 ms
    data = file_of(mp3(100) + slow * 579 + mp3(100))
    looks = [seconds_of(data) or 0 for _ in range(40)]  # as where it looks is chance
    assert mean(looks) == pytest.approx(579 * 0.072 + 200 * FRAME, rel=0.2)


@pytest.mark.parametrize("gap", [b"", b"\0"])
def test_who_has_time_reads_an_mp3_from_its_beginning(gap: bytes) -> None:
    """As decoders do, which go on behind a gap."""
    data = hidden_sound.frames_in_frames(20_000, gap)
    assert seconds_of(file_of(data), most=THOROUGH) == pytest.approx(1440, rel=0.01)
    mixed = mp3(2000) + data + bytes(3000) + mp3(2000)
    assert seconds_of(file_of(mixed), most=THOROUGH) == pytest.approx(1440 + 4000 * FRAME, rel=0.01)


def test_an_mp3_of_too_many_frames_has_no_length() -> None:
    shortest = b"\xff\xff\x14\xc4" + bytes(28)  # layer 1, 32 kbit/s at 48 kHz
    assert seconds_of(file_of(shortest * 1000), most=THOROUGH) == pytest.approx(8, rel=0.01)
    assert seconds_of(file_of(shortest * (THOROUGH + 1)), most=THOROUGH) is None


def test_other_sound_has_no_length() -> None:
    """A budget refuses it."""
    for data in (
        opus(5, head=b"\x7fFLAC" + bytes(40)),
        webm(5, codec=b"A_VORBIS"),
        mp4(5).replace(b"mp4a", b"alac"),
        b"#!AMR\n" + bytes(500),
        b"\xff\xf1" + bytes(500),
        opus(5) + opus(5, head=b"\x7fFLAC" + bytes(40)),
    ):
        assert seconds_of(file_of(data)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"OggS\0\2" + bytes(20) + b"\x01\x13OpusHead" + bytes(11) + b"OggS\0" * 60_000,
        b"fLaC" + bytes(38) + b"\xff\xf8\x10\x00" * 60_000,
        mp4(5) + b"\0\0\0\x08free" * 60_000,
        b"\0\0\0\x08ftyp" + b"\x00\x01\x00\x00moov" * 60_000,
        webm(5) + b"\xec\x80" * 60_000,
        b"ID3\x04\0\0\0\0\0\0" * 60_000,
        b"RIFF\0\0\0\0WAVE" + b"junk\0\0\0\0" * 60_000,
        hidden_sound.in_wav(b"\x56\xe1" * 600_000),
    ],
)
def test_a_file_of_many_parts_is_not_looked_through(data: bytes) -> None:
    began = time.thread_time()
    assert seconds_of(file_of(data)) is None
    assert time.thread_time() - began < 0.5
    assert seconds_of(file_of(opus(3600)), most=THOROUGH) == pytest.approx(3600, rel=0.01)


def test_bare_samples_are_known_by_their_name() -> None:
    assert seconds_of(file_of(bytes(48_000)), "pcm16") == 1
    assert seconds_of(file_of(bytes(48_000)), "mp3") is None


def test_a_recording_that_goes_on_has_no_length() -> None:
    assert seconds_of(file_of(mp4(0, frames=0))) is None


HEADS = [
    *(wav(0.01), mp3(2), mp4(1), mp4(1, wide=True), flac(9), opus(0.1), webm(0.1)),
    *(b"\0\0\0\0ftyp", b"\0\0\0\1ftyp" + bytes(16), b"RIFF\0\0\0\0WAVE", b"ID3", b"\xff\xfb\x90\xc4" * 1500),
]


@given(st.sampled_from(HEADS), st.integers(0, 60), st.binary(max_size=80))
def test_any_bytes_have_a_length_or_none(head: bytes, kept: int, tail: bytes) -> None:
    for data in (head[:kept] + tail, head + tail):
        seconds = seconds_of(file_of(data))
        assert seconds is None or seconds >= 0
