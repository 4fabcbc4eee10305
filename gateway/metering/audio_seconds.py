"""How long a piece of sound is, by the head of its file: WAV, MP3, MP4, FLAC and Ogg. No sound is decoded."""

from __future__ import annotations

import struct

from gateway.metering.encoded_file import ReadableFile

THINNEST = 1000
"""Bytes a second, of an MP3 of 8 kbit/s: no sound that is sent as a file takes longer."""
USUAL = 8000
"""Of a file of which nothing is known."""
FASTEST = 6_144_000
"""Eight channels of 192 kHz: a head that claims more is not believed."""
PCM = 48_000
"""Bare samples of 16 bits, 24,000 a second, as OpenAI's ``pcm16`` has them."""
_BARE = frozenset({"pcm", "pcm16", "l16"})
_MOST_CHUNKS = 64
_PLACES = 8
"""Of an MP3 without an index, at which its bit rate is read."""
_SEARCHED, _MOST_TRIED = 4096, 32
"""Bytes in which a frame begins, and places in them that look like one."""


def seconds_of(file: ReadableFile, format: str = "") -> float | None:
    """None where its length cannot be told. ``format`` is what the request calls it."""
    head = file.read(0, 64)
    try:
        if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
            return _wav(file)
        if head.startswith(b"fLaC"):
            return _flac(head)
        if head.startswith(b"OggS"):
            return _ogg(file, head)
        if head[4:8] == b"ftyp":
            return _mp4(file)
        if head.startswith((b"ID3", b"\xff")):
            return _mp3(file, head)
    except (struct.error, IndexError, ValueError):
        return None
    return file.size / PCM if format.lower() in _BARE else None


def _wav(file: ReadableFile) -> float | None:
    """http://soundfile.sapp.org/doc/WaveFormat; a length of nothing, or beyond the file, is a stream's."""
    at, rate = 12, 0
    for _ in range(_MOST_CHUNKS):
        name, size = struct.unpack("<4sI", file.read(at, 8))
        if name == b"fmt ":
            kind, channels, samples, rate, _, bits = struct.unpack("<HHIIHH", file.read(at + 8, 16))
            if kind in (1, 3, 0xFFFE):  # bare samples
                rate = samples * channels * bits // 8
        elif name == b"data":
            left = file.size - at - 8
            return (min(size, left) or left) / min(rate, FASTEST) if rate > 0 else None
        at += 8 + size + size % 2
    return None


def _flac(head: bytes) -> float | None:
    """RFC 9639, section 8.2."""
    (packed,) = struct.unpack(">Q", head[18:26])
    rate, samples = packed >> 44, packed & 0xFFFFFFFFF
    return samples / rate if rate and samples else None


def _ogg(file: ReadableFile, head: bytes) -> float | None:
    """RFC 3533, section 6; RFC 7845, section 4: Opus counts 48,000 a second whatever went in."""
    if head[28:36] == b"OpusHead":
        rate = 48_000
    elif head[28:35] == b"\x01vorbis":
        (rate,) = struct.unpack("<I", head[40:44])
    else:
        return None
    tail = file.read(max(0, file.size - 65_536), 65_536)
    last = tail.rfind(b"OggS")
    (samples,) = struct.unpack("<q", tail[last + 6 : last + 14])
    return samples / rate if last >= 0 and samples > 0 and rate else None


def _mp4(file: ReadableFile) -> float | None:
    """ISO/IEC 14496-12, sections 8.2.1 and 8.2.2: the movie's header lies in the box ``moov``."""
    at, end = 0, file.size
    for _ in range(_MOST_CHUNKS):
        size, name = struct.unpack(">I4s", file.read(at, 8))
        head = 8
        if size == 1:
            head, (size,) = 16, struct.unpack(">Q", file.read(at + 8, 8))
        size = size or end - at
        if name == b"moov":
            at, end = at + head, at + size
            continue
        if name == b"mvhd":
            wide = file.read(at + head, 1) == b"\x01"
            place = at + head + (20 if wide else 12)
            scale, duration = struct.unpack(">IQ" if wide else ">II", file.read(place, 12 if wide else 8))
            # A stream that is still being written has no duration yet.
            known = 0 < duration < (2**64 - 1 if wide else 2**32 - 1)
            return duration / scale if scale and known else None
        if size < head:
            return None
        at += size
    return None


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


def _mp3(file: ReadableFile, head: bytes) -> float | None:
    at = 0
    if head.startswith(b"ID3"):
        a, b, c, d = (byte & 0x7F for byte in head[6:10])
        at = 10 + (a << 21 | b << 14 | c << 7 | d)
    first = _frame(file, at)
    if first is None:
        return None
    at, rate, samples, sample_rate, side = first
    left = file.size - at
    if (frames := _index(file, at, side)) is not None:
        return max(frames * samples / sample_rate, left * 8 / 448_000)
    # Without an index all frames are alike, or nobody can tell: then those that are looked at stand for the others.
    others = (_frame(file, at + left * place // _PLACES) for place in range(1, _PLACES))
    rates = [rate, *(found[1] for found in others if found is not None)]
    return left * 8 * len(rates) / sum(rates)


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
