"""FLAC (RFC 9639): the frames that a decoder finds, by their headers, each with a checksum of its own. What the head
says of all samples together is no part of it."""

from __future__ import annotations

import re

from gateway.metering.encoded_file import ReadableFile
from gateway.metering.sound.pieces import Steps, places

_FRAME = re.compile(rb"\xff(?=[\xf8\xf9][\x10-\xff][\x00-\xaf])", re.DOTALL)
_LONGEST = 16
"""Bytes of a header."""
_RATES = (0, 88200, 176400, 192000, 8000, 16000, 22050, 24000, 32000, 44100, 48000, 96000)
_BYTE_KHZ, _HZ, _TEN_HZ = 12, 13, 14


def seconds(file: ReadableFile, steps: Steps) -> float | None:
    usual = int.from_bytes(file.read(18, 3), "big") >> 4
    """Samples a second, of frames that do not say it."""
    length, last, samples = 0.0, 0, 0
    for _, head in places(file, _FRAME, _LONGEST):
        steps.take()
        if (found := _frame(head, usual)) is None:
            continue
        size, rate = found
        if rate != last and last:
            length, samples = length + samples / last, 0
        samples, last = samples + size, rate
    return length + samples / last if last else None


def _frame(head: bytes, usual: int) -> tuple[int, int] | None:
    """Samples, and samples a second."""
    size, rate = head[2] >> 4, head[2] & 15
    if rate == 15 or head[3] & 1:
        return None
    first = head[4]
    at = 5 if first < 0x80 else 4 + 8 - (~first & 0xFF).bit_length()
    if size in (6, 7):
        samples, at = int.from_bytes(head[at : at + size - 5], "big") + 1, at + size - 5
    else:
        samples = 192 if size == 1 else 576 << size - 2 if size < 6 else 256 << size - 8
    if rate == _BYTE_KHZ:
        frequency, at = 1000 * head[at], at + 1
    elif rate in (_HZ, _TEN_HZ):
        told = int.from_bytes(head[at : at + 2], "big")
        frequency, at = told if rate == _HZ else 10 * told, at + 2
    else:
        frequency = _RATES[rate] or usual
    if len(head) <= at or _checksum(head[:at]) != head[at] or not frequency:
        return None
    return samples, frequency


def _checksum(data: bytes) -> int:
    value = 0
    for byte in data:
        value = _TABLE[value ^ byte]
    return value


def _entry(value: int) -> int:
    for _ in range(8):
        value = (value << 1 ^ 0x07) & 0xFF if value & 0x80 else value << 1
    return value


_TABLE = tuple(map(_entry, range(256)))
