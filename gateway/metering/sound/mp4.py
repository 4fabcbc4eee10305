"""MP4 (ISO/IEC 14496-12) with AAC: the frames in its tables of samples, at the rate that the decoder is given. What the
movie's header says of its duration no decoder goes by; what lies where only some decoders look, none is to find."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from gateway.metering.encoded_file import ReadableFile
from gateway.metering.sound.pieces import PIECE, Steps

_CONTAINERS = frozenset({b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"})
_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)
_FRAME = 1024
"""Samples, of the kinds of AAC that are used for files: main, LC, LTP, and SBR with and without PS."""
_KINDS = frozenset({1, 2, 4, 5, 29})
_MOST_ENTRY = 4096
_DEEPEST = 8
_LENGTH = rb"[\x80-\xff]{0,3}[\x00-\x7f]"
_CONFIG = re.compile(
    rb"esds.{4}\x03" + _LENGTH + rb"..[\x00-\x1f]"
    rb"\x04" + _LENGTH + rb"[\x40\x66-\x68].{12}\x05" + _LENGTH + rb"(.{2,5})",
    re.DOTALL,
)
"""Of a decoder of AAC, in the box ``esds`` (ISO/IEC 14496-1, section 7.2.6.6)."""
_MOVIE = re.compile(rb"moov|hoov|cmov|mvhd|trak|moof|traf")
"""Boxes of a movie, which decoders find in others, too, and in a packed one."""
_OVERLAP = 3
_PICTURES = frozenset({b"vide"})
_SILENT = frozenset({b"text", b"tx3g", b"tmcd", b"mebx", b"rtp "})
"""Tracks of text and of time: whatever else a track calls itself, decoders go by its entry."""


@dataclass(slots=True)
class _Track:
    """Decoders differ in which of several boxes of a kind counts."""

    ids: set[int] = field(default_factory=set)
    kinds: set[bytes] = field(default_factory=set)
    """As it calls itself."""
    entries: set[bytes] = field(default_factory=set)
    frames: int = 0
    rates: set[int] = field(default_factory=set)
    """Samples a second; 0 where nobody knows."""

    @property
    def is_sound(self) -> bool:
        return self.kinds != _PICTURES and not (self.entries and self.entries <= _SILENT)


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
            rate = min(track.rates, default=0)
            if not rate:
                return None
            frames = track.frames + sum(movie.fragments.get(number, 0) for number in track.ids)
            length += frames * _FRAME / rate
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
            _box(file, name, at + head, min(end, at + size) - at - head, movie, steps)
        at += size


def _box(file: ReadableFile, name: bytes, at: int, size: int, movie: _Movie, steps: Steps) -> None:
    track = movie.tracks[-1] if movie.tracks else _Track()
    match name:
        case b"tkhd":
            place = 20 if file.read(at, 1) == b"\x01" else 12
            track.ids.add(_integer(file, at + place))
        case b"hdlr":
            if file.read(at + 4, 4) != b"dhlr":  # of data, in QuickTime
                track.kinds.add(file.read(at + 8, 4))
        case b"stsz" | b"stz2":
            track.frames += _integer(file, at + 8)
        case b"stsd":
            entries = file.read(at, size) if size <= _MOST_ENTRY else b""
            track.entries.add(entries[12:16])
            track.rates.add(_rate(entries) or 0)
        case b"tfhd":
            movie.fragment = _integer(file, at + 4)
        case b"trun":
            movie.fragments[movie.fragment] = movie.fragments.get(movie.fragment, 0) + _integer(file, at + 4)
        case b"mdat":
            pass
        case b"cmov" | b"hoov":
            raise ValueError("a movie in another form")
        case _:
            _refuse_hidden(file, at, size, steps)


def _refuse_hidden(file: ReadableFile, at: int, size: int, steps: Steps) -> None:
    """Raises ``ValueError`` for a box that holds a movie."""
    for start in range(0, size, PIECE):
        steps.take()
        if _MOVIE.search(file.read(at + start, min(PIECE + _OVERLAP, size - start))):
            raise ValueError("a movie in another box")


def _integer(file: ReadableFile, at: int) -> int:
    return int(struct.unpack(">I", file.read(at, 4))[0])


def _rate(entries: bytes) -> int | None:
    """Samples a second; None for what is not AAC, or for more than one."""
    if entries[4:8] != b"\0\0\0\1" or entries[12:16] != b"mp4a" or entries.count(b"esds") != 1:
        return None
    found = _CONFIG.search(entries)
    return _rate_of(found[1]) or None if found is not None else None


def _rate_of(config: bytes) -> int:
    """ISO/IEC 14496-3, section 1.6.2.1; 0 for a kind whose frames may be of another length."""
    bits = int.from_bytes(config.ljust(5, b"\0"), "big")
    kind, index = bits >> 35, bits >> 31 & 15
    if kind not in _KINDS or 12 < index < 15:
        return 0
    return bits >> 7 & 0xFFFFFF if index == 15 else _RATES[index]
