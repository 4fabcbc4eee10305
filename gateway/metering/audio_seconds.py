"""How long a piece of sound plays: WAV, MP3, MP4, FLAC, Ogg and WebM. No sound is decoded, and no head believed: a file
is as long as what a decoder finds in it."""

from __future__ import annotations

import struct

from gateway.metering.encoded_file import ReadableFile
from gateway.metering.sound import flac, frames, mp3, mp4, ogg, wav, webm
from gateway.metering.sound.mp3 import THINNEST as THINNEST
from gateway.metering.sound.pieces import Steps, Tail

USUAL = 8000
"""Bytes a second, of a file of which nothing is known."""
THINNEST_UNKNOWN = 8
"""Bytes a second at least, where its length cannot be told: a byte of Opus plays 120 ms (RFC 6716, section 3.1), and
that many of them share a block of WebM."""
PCM = 48_000
"""Bare samples of 16 bits, 24,000 a second, as OpenAI's ``pcm16`` has them."""
_BARE = frozenset({"pcm", "pcm16", "l16"})
_MOST_TAGS = 8
QUICK = 4_000
"""Parts of a file that are looked at on the event loop, where it stays below 20 ms;"""
THOROUGH = 400_000
"""and in a thread: of two hours of Opus."""


def seconds_of(file: ReadableFile, format: str = "", *, most: int = QUICK) -> float | None:
    """None where its length cannot be told. ``format`` is what the request calls it."""
    start, head = 0, file.read(0, 64)
    for _ in range(_MOST_TAGS):
        if len(head) < 10 or not head.startswith(b"ID3"):
            break
        a, b, c, d = (byte & 0x7F for byte in head[6:10])
        start += 10 + (a << 21 | b << 14 | c << 7 | d)
        head = file.read(start, 64)
    file = Tail(file, start) if start else file
    steps = Steps(most)
    try:
        if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
            return wav.seconds(file, steps)
        if head.startswith(b"fLaC"):
            return flac.seconds(file, steps)
        if head.startswith(b"OggS"):
            return ogg.seconds(file, steps)
        if head.startswith(b"\x1aE\xdf\xa3"):
            return webm.seconds(file, steps)
        if head[4:8] == b"ftyp":
            return mp4.seconds(file, steps)
        if head.startswith(b"\xff"):
            return None if frames.foreign(file, steps) else mp3.seconds(file, steps)
    except (struct.error, IndexError, ValueError, ZeroDivisionError):
        return None
    return file.size / PCM if format.lower() in _BARE else None
