"""WebM and Matroska (RFC 9559) with Opus, as browsers record it: its blocks, each of whose packets says how long it
plays."""

from __future__ import annotations

from gateway.metering.encoded_file import ReadableFile
from gateway.metering.sound import opus
from gateway.metering.sound.pieces import Steps

_SEGMENT, _CLUSTER, _TRACKS, _ENTRY, _GROUP = 0x18538067, 0x1F43B675, 0x1654AE6B, 0xAE, 0xA0
_INSIDE = frozenset({_SEGMENT, _CLUSTER, _TRACKS, _ENTRY, _GROUP})
_CODEC, _TRACK, _ENCODINGS, _SIMPLE_BLOCK, _BLOCK = 0x86, 0xD7, 0x6D80, 0xA3, 0xA1
_OPUS = b"A_OPUS"
_WINDOW = 2**16


def seconds(file: ReadableFile, steps: Steps) -> float | None:
    """None where it has another codec of sound, or what is no element."""
    at, start, window = 0, 0, b""
    track, codec = 0, b""
    codecs: dict[int, bytes] = {}
    lengths: dict[int, float] = {}
    while at < file.size:
        steps.take()
        if at - start > len(window) - 64:
            start, window = at, file.read(at, _WINDOW)
        data = window[at - start : at - start + 64]
        name, width = _number(data, keep=True)
        size, more = _number(data[width:])
        at += width + more
        inside = data[width + more :]
        unknown = size == (1 << 7 * more) - 1
        if name in _INSIDE:
            if name == _ENTRY:
                track, codec = 0, b""
            continue
        if unknown or at + size > file.size or name == _ENCODINGS:
            return None
        if name in (_CODEC, _TRACK):
            if name == _CODEC:
                codec = inside[:size].rstrip(b"\0")
            else:
                track = int.from_bytes(inside[:size], "big")
            if track and codec:
                codecs[track] = codec
        elif name in (_SIMPLE_BLOCK, _BLOCK):
            number, _ = _number(inside)
            lengths[number] = lengths.get(number, 0.0) + _block(inside[:size])
        at += size
    if any(codec.startswith(b"A_") and codec != _OPUS for codec in codecs.values()):
        return None
    return sum(length for track, length in lengths.items() if codecs.get(track) == _OPUS) or None


def _block(data: bytes) -> float:
    _, width = _number(data)
    flags = data[width + 2]
    if not flags & 0x06:
        return opus.seconds(data[width + 3 : width + 5])
    # Packets that share a block: of those of Xiph's and EBML's lacing it is not known where they begin.
    return 0.12 * (data[width + 3] + 1)


def _number(data: bytes, *, keep: bool = False) -> tuple[int, int]:
    """A variable-size integer (RFC 8794, section 4), with its marker where it is a name; and its bytes."""
    width = 9 - data[0].bit_length()
    if width > 8 or len(data) < width:
        raise ValueError("no element")
    value = int.from_bytes(data[:width], "big")
    return (value if keep else value & (1 << 7 * width) - 1), width
