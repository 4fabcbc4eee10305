"""Width and height of a picture, by the head of its file: PNG, JPEG, GIF and WebP, which all providers take."""

from __future__ import annotations

import struct
from base64 import b64decode
from binascii import Error

HEAD = 2**17
"""Bytes that are looked at: before a JPEG's size may come a preview and a profile of its colours."""
_CODED = -(-HEAD // 3) * 4


def size_in_url(url: str) -> tuple[int, int] | None:
    """Of a ``data:`` URL in base64; None for others, which would have to be fetched, and for what is no picture."""
    head, comma, _ = url[:256].partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return size_in_base64(url[len(head) + 1 : len(head) + 1 + _CODED])


def size_in_base64(coded: str) -> tuple[int, int] | None:
    coded = coded[:_CODED]
    try:
        return size_of(b64decode(coded[: len(coded) // 4 * 4]))
    except (Error, ValueError):
        return None


def size_of(data: bytes) -> tuple[int, int] | None:
    """In pixels."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            size = struct.unpack_from(">II", data, 16)
        elif data.startswith((b"GIF87a", b"GIF89a")):
            size = struct.unpack_from("<HH", data, 6)
        elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            size = _webp(data)
        elif data.startswith(b"\xff\xd8"):
            size = _jpeg(data)
        else:
            return None
    except struct.error:
        return None
    width, height = size
    return (width, height) if width and height else None


def _webp(data: bytes) -> tuple[int, int]:
    """https://developers.google.com/speed/webp/docs/riff_container; RFC 6386, section 9.1."""
    match data[12:16]:
        case b"VP8X":
            width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case _:
            width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    return width, height


_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""The markers before which a frame's size stands (ITU T.81, table B.1)."""
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        mark, kind = struct.unpack_from("BB", data, at)
        if mark != 0xFF:
            raise struct.error
        if kind == 0xFF or kind in _BARE:
            at += 1 if kind == 0xFF else 2
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        if kind in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + max(length, 2)
