"""WAV (http://soundfile.sapp.org/doc/WaveFormat): all that follows the head of the first ``data`` is taken for sound.
Decoders go on at the next ``data``, and a length of nothing, or beyond the file, is a stream's. Where they find frames
of compressed sound they play those, though the head says samples (FFmpeg does)."""

from __future__ import annotations

import struct

from gateway.metering.encoded_file import ReadableFile
from gateway.metering.sound import frames, mp3
from gateway.metering.sound.pieces import Steps, Tail

FASTEST = 6_144_000
"""Eight channels of 192 kHz: a head that claims more is not believed."""
_EXTENSIBLE, _MP3 = 0xFFFE, 0x55
_BITS = {2: 4, 6: 8, 7: 8}
"""Of a sample, where it is packed: ADPCM, A-law and μ-law (RFC 2361)."""
_IMA = 0x11
"""ADPCM whose head says how many bits: two to five."""
_BARE = (1, 3)


def seconds(file: ReadableFile, steps: Steps) -> float | None:
    at, rates, packed = 12, [], False
    while True:
        steps.take()
        name, size = struct.unpack("<4sI", file.read(at, 8))
        if name == b"fmt ":
            kind, rate = _format(file.read(at + 8, min(size, 40)))
            packed = packed or kind == _MP3
            rates.append(rate)
        elif name == b"data" and packed:
            return mp3.seconds(Tail(file, at + 8), steps)
        elif name == b"data":
            # Decoders differ in which of several formats they take.
            rate, sound = min(rates, default=0), Tail(file, at + 8)
            if rate <= 0 or frames.compressed(sound, steps):
                return None
            return sound.size / min(rate, FASTEST)
        at += 8 + size + size % 2


def _format(data: bytes) -> tuple[int, int]:
    """Its number, and bytes a second; 0 where nobody knows."""
    kind, channels, samples, _, _, bits = struct.unpack("<HHIIHH", data[:16])
    if kind == _EXTENSIBLE:
        (kind,) = struct.unpack("<H", data[24:26])
    if kind != _IMA:
        bits = -(-bits // 8) * 8 if kind in _BARE else _BITS.get(kind, 0)
    return kind, samples * channels * bits // 8
