"""Ogg (RFC 3533) with Opus (RFC 7845) or Vorbis: its packets, which a decoder plays whatever the pages say of time."""

from __future__ import annotations

import random
import re
import struct
from itertools import accumulate

from gateway.metering.encoded_file import ReadableFile
from gateway.metering.sound import opus
from gateway.metering.sound.pieces import Steps, places

_PAGE = re.compile(rb"OggS\x00", re.DOTALL)
_LONGEST = 27 + 255
_LOOKED_AT = 4
"""Packets of a page, by chance, that stand for the others."""
_CONTINUED, _BEGINS = 1, 2
_TAGS = b"OpusTags"


def seconds(file: ReadableFile, steps: Steps) -> float | None:
    """None for another codec, and where streams have different ones."""
    head = file.read(0, 128)
    body = 27 + head[26]
    if head[body : body + 8] == b"OpusHead":
        return _opus(file, steps)
    if head[body : body + 7] == b"\x01vorbis":
        return _vorbis(file, head[body:], steps)
    return None


def _opus(file: ReadableFile, steps: Steps) -> float | None:
    length = 0.0
    for at, page in places(file, _PAGE, _LONGEST):
        steps.take()
        if len(page) < 27:
            break
        table = page[27 : 27 + page[26]]
        body = at + 27 + len(table)
        starts = _starts(table, bool(page[5] & _CONTINUED))
        if page[5] & _BEGINS:
            if file.read(body, 8) != b"OpusHead":
                return None
            starts = starts[1:]
        looked_at = starts if len(starts) <= _LOOKED_AT else random.sample(starts, _LOOKED_AT)
        packets = [file.read(body + start, 2) for start in looked_at]
        is_tags = len(starts) == 1 and file.read(body + starts[0], 8) == _TAGS
        if packets and not is_tags:
            length += len(starts) * sum(map(opus.seconds, packets)) / len(packets)
    return length or None


def _vorbis(file: ReadableFile, head: bytes, steps: Steps) -> float | None:
    """By what the last page says, if the packets bear that out: a long one has twice the samples of its half."""
    (rate,) = struct.unpack("<I", head[12:16])
    packets, last = 0, 0
    for at, page in places(file, _PAGE, _LONGEST):
        steps.take()
        if len(page) < 27:
            break
        table = page[27 : 27 + page[26]]
        if page[5] & _BEGINS and file.read(at + 27 + len(table), 7) != b"\x01vorbis":
            return None
        packets += len(_starts(table, bool(page[5] & _CONTINUED)))
        last = max(last, struct.unpack("<q", page[6:14])[0])
    longest = packets * (1 << (head[28] >> 4)) / 2 / rate
    told = last / rate
    return (told if told >= longest / 2 else longest) or None


def _starts(table: bytes, continued: bool) -> list[int]:
    """Where in a page's body its packets begin."""
    begins, starts = not continued, []
    for size, start in zip(table, accumulate(table, initial=0), strict=False):
        if begins:
            starts.append(start)
        begins = size < 255
    return starts
