"""MP4 (ISO/IEC 14496-12) with AAC: the frames in its tables of samples, at the rate that the decoder is given. What the
movie's header says of its duration no decoder goes by."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from gateway.metering.encoded_file import ReadableFile
from gateway.metering.sound.pieces import Steps

_CONTAINERS = frozenset({b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"})
_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)
_FRAME = 1024
"""Samples, of the kinds of AAC that are used for files: main, LC, LTP, and SBR with and without PS."""
_KINDS = frozenset({1, 2, 4, 5, 29})
_MOST_ENTRY = 4096
_DEEPEST = 8
_LENGTH = rb"[\x80-\xff]{0,3}[\x00-\x7f]"
_CONFIG = re.compile(rb"\x04" + _LENGTH + rb"[\x40\x66-\x68].{12}\x05" + _LENGTH + rb"(.{2,5})", re.DOTALL)
"""Of a decoder of AAC, in the box ``esds`` (ISO/IEC 14496-1, section 7.2.6.6)."""


@dataclass(slots=True)
class _Track:
    id: int = 0
    is_sound: bool = False
    frames: int = 0
    rate: int | None = None


@dataclass(slots=True)
class _Movie:
    tracks: list[_Track] = field(default_factory=list)
    fragments: dict[int, int] = field(default_factory=dict)
    """Frames, by track."""
    fragment: int = 0
    """The track of the fragment that is read."""


def seconds(file: ReadableFile, steps: Steps) -> float | None:
    """None where it has no sound, or sound of another kind."""
    movie = _Movie()
    _read(file, 0, file.size, movie, steps, _DEEPEST)
    length = 0.0
    for track in movie.tracks:
        if track.is_sound:
            if not track.rate:
                return None
            length += (track.frames + movie.fragments.get(track.id, 0)) * _FRAME / track.rate
    return length or None


def _read(file: ReadableFile, at: int, end: int, movie: _Movie, steps: Steps, depth: int) -> None:
    while at + 8 <= end:
        steps.take()
        size, name = struct.unpack(">I4s", file.read(at, 8))
        head = 8
        if size == 1:
            head, (size,) = 16, struct.unpack(">Q", file.read(at + 8, 8))
        size = size or end - at
        if size < head or not depth:
            raise ValueError("no box")
        if name == b"trak":
            movie.tracks.append(_Track())
        if name in _CONTAINERS:
            _read(file, at + head, min(end, at + size), movie, steps, depth - 1)
        else:
            _box(file, name, at + head, size - head, movie)
        at += size


def _box(file: ReadableFile, name: bytes, at: int, size: int, movie: _Movie) -> None:
    track = movie.tracks[-1] if movie.tracks else _Track()
    match name:
        case b"tkhd":
            place = 20 if file.read(at, 1) == b"\x01" else 12
            track.id = _integer(file, at + place)
        case b"hdlr":
            track.is_sound = file.read(at + 8, 4) == b"soun"
        case b"stsz" | b"stz2":
            track.frames += _integer(file, at + 8)
        case b"stsd":
            track.rate = _rate(file.read(at, min(size, _MOST_ENTRY)))
        case b"tfhd":
            movie.fragment = _integer(file, at + 4)
        case b"trun":
            movie.fragments[movie.fragment] = movie.fragments.get(movie.fragment, 0) + _integer(file, at + 4)


def _integer(file: ReadableFile, at: int) -> int:
    return int(struct.unpack(">I", file.read(at, 4))[0])


def _rate(entries: bytes) -> int | None:
    """Samples a second, the fewest of several; None for what is not AAC."""
    if entries[12:16] != b"mp4a":
        return None
    return min(map(_rate_of, _CONFIG.findall(entries)), default=None) or None


def _rate_of(config: bytes) -> int:
    """ISO/IEC 14496-3, section 1.6.2.1; 0 for a kind whose frames may be of another length."""
    bits = int.from_bytes(config.ljust(5, b"\0"), "big")
    kind, index = bits >> 35, bits >> 31 & 15
    if kind not in _KINDS or 12 < index < 15:
        return 0
    return bits >> 7 & 0xFFFFFF if index == 15 else _RATES[index]
