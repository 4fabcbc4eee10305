"""Frames of compressed sound, where there should be none: decoders take what they find, whatever the file calls it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from gateway.metering.encoded_file import ReadableFile
from gateway.metering.sound import mp3
from gateway.metering.sound.pieces import Steps

_PLACES = 32
"""That are looked at, by chance, and the beginning."""
_WINDOW = 2**14
_CHAIN = 4
"""Frames of which each begins where the one before ends: samples that look like so many are none."""
_MOST_TRIED = 32
"""Places in a window that look like a frame, from one by chance on: a file may be full of them."""
_BURST = re.compile(rb"\x72\xf8\x1f\x4e|\xf8\x72\x4e\x1f|\xf8\x72\x6f[\xba\xbb]")
"""Of S/PDIF (IEC 61937), in either order of bytes, or of TrueHD: between samples it would be a crack."""
_DTS = (b"\x7f\xfe\x80\x01", b"\xfe\x7f\x01\x80", b"\x1f\xff\xe8\x00", b"\xff\x1f\x00\xe8")
"""How its frames begin (ETSI TS 102 114), as low sounds have it now and then."""
_AC3 = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640)

Size = Callable[[bytes], int]
"""Of the frame that begins with these bytes; 0 where none does."""


def foreign(file: ReadableFile, steps: Steps) -> bool:
    """Whether there are frames of AAC, AC-3, DTS and the like."""
    return _found(file, steps, _FOREIGN)


def compressed(file: ReadableFile, steps: Steps) -> bool:
    """Whether there are frames of these or of MP3."""
    return _found(file, steps, (*_FOREIGN, (b"\xff", mp3.frame_size)))


def _found(file: ReadableFile, steps: Steps, kinds: tuple[tuple[bytes, Size], ...]) -> bool:
    last = file.size - _WINDOW
    for place in (0, *(random.randrange(last) for _ in range(_PLACES if last > 0 else 0))):
        steps.take()
        data = file.read(place, _WINDOW)
        if _BURST.search(data) or any(data.count(mark) >= _CHAIN for mark in _DTS):
            return True
        if any(_chained(data, mark, size_of) for mark, size_of in kinds):
            return True
    return False


def _chained(data: bytes, mark: bytes, size_of: Size) -> bool:
    at = random.randrange(len(data) // 2 + 1) - 1
    for _ in range(_MOST_TRIED):
        at = data.find(mark, at + 1)
        if at < 0:
            return False
        place, first = at, data[at : at + 2]
        for _ in range(_CHAIN):
            head = data[place : place + 8]
            size = size_of(head)
            if not size or (mark == b"\xff" and head[:2] != first):
                break
            place += size
        else:
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


_FOREIGN: tuple[tuple[bytes, Size], ...] = (
    (b"\xff", _adts),
    (b"\x56", _latm),
    (b"\x0b\x77", _ac3),
    (b"\x77\x0b", _ac3),
)
