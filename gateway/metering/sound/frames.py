"""Frames of compressed sound, where there should be none: decoders take what they find, whatever the file calls it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from gateway.metering.encoded_file import ReadableFile
from gateway.metering.sound import mp3
from gateway.metering.sound.pieces import Steps

_PLACES = 16
"""That are looked at, by chance, and the beginning."""
_WINDOW = 2**15 + 2**4
"""Bytes in which so many frames lie as make a chain, of the longest that there are (AAC: 8,191 bytes)."""
_CHAIN = 4
"""Frames of which each begins where the one before ends: samples that look like so many are none."""
_HEADS_A_STEP = 2
"""Places that look like a frame: a file may be full of them."""
_LONGEST_HEAD = 6
_BURSTS = (b"\x72\xf8\x1f\x4e", b"\xf8\x72\x4e\x1f", b"\xf8\x72\x6f\xba", b"\xf8\x72\x6f\xbb")
"""Of S/PDIF (IEC 61937), in either order of bytes, or of TrueHD: between samples it would be a crack."""
_DTS = (b"\x7f\xfe\x80\x01", b"\xfe\x7f\x01\x80", b"\x1f\xff\xe8\x00", b"\xff\x1f\x00\xe8")
"""How its frames begin (ETSI TS 102 114), as low sounds have it now and then."""
_AC3 = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Of frames."""

    head: re.Pattern[bytes]
    size_of: Callable[[bytes], int]
    """Of the frame that begins with these bytes; 0 where none does."""
    alike: int
    """The first bytes, which all frames of a file have in common."""


def foreign(file: ReadableFile, steps: Steps) -> bool:
    """Whether there are frames of AAC, AC-3, DTS and the like."""
    return _found(file, steps, _FOREIGN)


def compressed(file: ReadableFile, steps: Steps) -> bool:
    """Whether there are frames of these or of MP3."""
    return _found(file, steps, (*_FOREIGN, _MP3))


def _found(file: ReadableFile, steps: Steps, kinds: tuple[_Kind, ...]) -> bool:
    last = file.size - _WINDOW
    for place in (0, *(random.randrange(last) for _ in range(_PLACES if last > 0 else 0))):
        steps.take()
        data = file.read(place, _WINDOW)
        if any(mark in data for mark in _BURSTS) or any(data.count(mark) >= _CHAIN for mark in _DTS):
            return True
        if any(_chained(data, kind, steps) for kind in kinds):
            return True
    return False


def _chained(data: bytes, kind: _Kind, steps: Steps) -> bool:
    """Whether enough frames follow each other, from any place on: what only looks like one may stand between them."""
    frames: dict[int, int] = {}
    """By place: in how many the one there is the first, as far as they are of its kind."""
    for number, place in enumerate(reversed([head.start() for head in kind.head.finditer(data)])):
        if number % _HEADS_A_STEP == 0:
            steps.take()
        if size := kind.size_of(data[place : place + _LONGEST_HEAD]):
            follows = place + size
            same = data[follows : follows + kind.alike] == data[place : place + kind.alike]
            frames[place] = 1 + (frames.get(follows, 0) if same else 0)
            if frames[place] == _CHAIN:
                return True
    return False


def _adts(head: bytes) -> int:
    """AAC (ISO/IEC 13818-7, section 6.2)."""
    if len(head) < 6 or head[0] != 0xFF or head[1] & 0xF6 != 0xF0 or head[2] >> 2 & 15 > 12:
        return 0
    size = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    return size if size > 7 else 0


def _latm(head: bytes) -> int:
    """AAC in LOAS (ISO/IEC 14496-3, section 1.7.2)."""
    if len(head) < 3 or head[0] != 0x56 or head[1] & 0xE0 != 0xE0:
        return 0
    return ((head[1] & 0x1F) << 8 | head[2]) + 3


def _ac3(head: bytes) -> int:
    """AC-3 and E-AC-3 (ETSI TS 102 366), in either order of bytes."""
    if head[:2] == b"\x77\x0b":
        head = bytes(head[at ^ 1] for at in range(len(head) & ~1))
    if len(head) < 6 or head[:2] != b"\x0b\x77":
        return 0
    if head[5] >> 3 > 10:
        return 2 * (((head[2] & 7) << 8 | head[3]) + 1) if head[5] >> 3 <= 16 else 0
    rate, code = head[4] >> 6, head[4] & 63
    if rate == 3 or code >= 2 * len(_AC3):
        return 0
    kilobits = _AC3[code >> 1]
    return (4 * kilobits, 2 * (kilobits * 96_000 // 44_100 + (code & 1)), 6 * kilobits)[rate]


_FOREIGN = (
    _Kind(
        re.compile(rb"\xff(?=[\xf0\xf1\xf8\xf9][^\x34-\x3f\x74-\x7f\xb4-\xbf\xf4-\xff])", re.DOTALL), _adts, 2
    ),
    _Kind(re.compile(rb"\x56(?=[\xe0-\xff])"), _latm, 1),
    _Kind(re.compile(rb"\x0b(?=\x77)"), _ac3, 2),
    _Kind(re.compile(rb"\x77(?=\x0b)"), _ac3, 2),
)
_MP3 = _Kind(mp3.HEAD, mp3.frame_size, 2)
