"""MP3 (ISO 11172-3, 13818-3): by all of its frames, one behind the other, where there is time for that, and else by the
bit rates of frames here and there. What an encoder's index says is believed where they bear it out.

A frame may hold what looks like frames of another bit rate. Who comes from the beginning does not see them, as decoders
do not; at a place chosen by chance nobody knows which are the frames, and those of the lowest bit rate count.
"""

from __future__ import annotations

import random
import re

from gateway.metering.encoded_file import ReadableFile
from gateway.metering.sound.pieces import PIECE, Steps

THINNEST = 1000
"""Bytes a second, of 8 kbit/s."""
_PLACES = 64
"""At which the bit rate is read: by chance, as a file may be made for places that are known."""
_TAIL = 2 * 1441
"""Bytes at the end, in which no frame may begin that another follows."""
_BORNE_OUT = 0.8
_SEARCHED, _MOST_TRIED = 4096, 32
"""Bytes in which a frame begins, and places in them that look like one."""
_CHAIN = 3
"""Frames of which each begins where the one before ends, which are no chance."""
_MOST_HEADS = 256
"""In these bytes: the shortest frames have 128."""
_WALKED = 50_000
"""Steps with which all frames are looked at."""
HEAD = re.compile(
    rb"\xff(?=[\xe2-\xe7\xf2-\xf7\xfa-\xff]"
    rb"[%s])" % b"".join(rb"\x%x0-\x%xb" % (rate, rate) for rate in range(1, 15))
)
"""Of a frame, as far as its first three bytes tell."""

_BIT_RATES = {
    # kbit/s, by version 1 or not, and layer (ISO 11172-3, 13818-3)
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_SAMPLE_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}


def seconds(file: ReadableFile, steps: Steps) -> float | None:
    """``file`` begins with a frame, or shortly before."""
    first = _frame(file, 0)
    if first is None:
        return None
    at, _, samples, sample_rate, side = first
    left = file.size - at
    found = []
    for _ in range(_PLACES):
        steps.take()
        found.append(_bit_rate(file, at + random.randrange(max(1, left - _TAIL))))
    # What is no frame may be anything.
    counted = left * sum(8 / one if one is not None else 1 / THINNEST for one in found) / len(found)
    if steps.left >= _WALKED:
        walked = _walked(file, at, steps)
        return walked if walked >= counted / 2 else counted
    told = (_index(file, at, side) or 0) * samples / sample_rate
    return told if told >= _BORNE_OUT * counted else counted


def frame_size(head: bytes) -> int:
    """Of the frame that begins with these bytes; 0 where none does."""
    found = _header(head[:4]) if len(head) >= 4 else None
    return found[0] if found is not None else 0


def _frame(file: ReadableFile, at: int) -> tuple[int, int, int, int, int] | None:
    """The first frame from ``at`` on: where it begins, bits a second, samples, samples a second, and the place of an
    index in it."""
    data, place = file.read(at, _SEARCHED), -1
    for _ in range(_MOST_TRIED):
        place = data.find(b"\xff", place + 1)
        if not 0 <= place <= len(data) - 4:
            return None
        if (found := _header(data[place : place + 4])) is not None:
            size, *figures = found
            follows = data[place + size : place + size + 2]
            if len(follows) < 2 or (follows[0] == 0xFF and follows[1] & 0xE0 == 0xE0):
                rate, samples, sample_rate, side = figures
                return at + place, rate, samples, sample_rate, side
    return None


def _walked(file: ReadableFile, at: int, steps: Steps) -> float:
    """Seconds of all frames from ``at`` on: the next one is the first behind the end of the one before."""
    seconds, start, data = 0.0, at, file.read(at, PIECE)
    while at + 4 <= file.size:
        steps.take()
        if at + 4 > start + len(data):
            start, data = at, file.read(at, PIECE)
        here = at - start
        if (head := HEAD.search(data, here)) is None:
            at = start + max(here + 1, len(data) - 2)
            continue
        at = start + head.start()
        found = _header(data[head.start() : head.start() + 4])
        if found is None:
            at += 1
            continue
        size, _, samples, sample_rate, _ = found
        seconds += samples / sample_rate
        at += size
    return seconds


def _bit_rate(file: ReadableFile, at: int) -> int | None:
    """Of the first frame from ``at`` on; or of others that lie inside it and those that follow, where that is lower."""
    data = file.read(at, _SEARCHED)
    heads: dict[int, tuple[int, int]] = {}
    """By place: how long the frame is, and bits a second."""
    for match in HEAD.finditer(data, 0, len(data) - 1):
        place = match.start()
        if (found := _header(data[place : place + 4])) is not None:
            heads[place] = found[:2]
            if len(heads) > _MOST_HEADS:
                return None
    lowest: int | None = None
    while heads:
        place, (_, rate) = next(iter(heads.items()))
        frames = 0
        while (head := heads.pop(place, None)) is not None:
            place, frames = place + head[0], frames + 1
        if frames >= (_CHAIN if lowest is not None else 2):
            lowest = rate if lowest is None else min(lowest, rate)
    return lowest


def _header(data: bytes) -> tuple[int, int, int, int, int] | None:
    version, layer = data[1] >> 3 & 3, 4 - (data[1] >> 1 & 3)
    bit_rate, sample_rate = data[2] >> 4, data[2] >> 2 & 3
    if data[1] & 0xE0 != 0xE0 or version == 1 or layer == 4 or bit_rate in (0, 15) or sample_rate == 3:
        return None
    is_1 = version == 3
    rate = 1000 * _BIT_RATES[is_1, layer][bit_rate - 1]
    frequency = _SAMPLE_RATES[version][sample_rate]
    samples = 384 if layer == 1 else 1152 if layer == 2 or is_1 else 576
    mono = data[3] >> 6 == 3
    side = 4 + ((17 if mono else 32) if is_1 else (9 if mono else 17))
    padding = (data[2] >> 1 & 1) * (4 if layer == 1 else 1)
    return samples // 8 * rate // frequency + padding, rate, samples, frequency, side


def _index(file: ReadableFile, at: int, side: int) -> int | None:
    """The number of frames, as encoders of variable bit rates write it into the first."""
    xing = file.read(at + side, 12)
    if xing[:4] in (b"Xing", b"Info") and xing[7] & 1:
        return int.from_bytes(xing[8:12], "big") or None
    vbri = file.read(at + 36, 18)
    return int.from_bytes(vbri[14:18], "big") or None if vbri[:4] == b"VBRI" else None
