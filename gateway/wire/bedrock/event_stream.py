"""Amazon's event-stream framing (https://docs.aws.amazon.com/transcribe/latest/dg/streaming-setting-up.html#streaming-event-stream):
a message is its length, its headers' length and a checksum of both, the headers, the payload, and a checksum of it all.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

from gateway.wire.sse import MAX_EVENT

_PRELUDE = struct.Struct("!III")
_AROUND = _PRELUDE.size + 4
"""Bytes of a message beside its headers and payload."""
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Of header values, by type; those of bytes (6) and strings (7) begin with their length."""


class Message(NamedTuple):
    headers: dict[str, str]
    """Those that are strings."""
    payload: bytes


class BrokenStream(ValueError):
    """The bytes are no event stream, or were changed on their way."""


class MessageReader:
    """Finds the messages in a stream of bytes, however they are cut up."""

    def __init__(self) -> None:
        self.passed_over = 0
        """Of such a stream nothing is, as of server-sent events comments are."""
        self._rest = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether no message is open."""
        return not self._rest

    def feed(self, part: bytes) -> list[Message]:
        """The messages that ``part`` completes. Raises ``BrokenStream``."""
        self._rest += part
        found: list[Message] = []
        while len(self._rest) >= _PRELUDE.size:
            whole, head, checksum = _PRELUDE.unpack_from(self._rest)
            if crc32(self._rest[:8]) != checksum:
                raise BrokenStream("a message whose first bytes are wrong")
            if whole > MAX_EVENT or head + _AROUND > whole:
                raise BrokenStream(f"a message of {whole} bytes")
            if len(self._rest) < whole:
                break
            message = bytes(self._rest[:whole])
            del self._rest[:whole]
            if crc32(message[:-4]) != int.from_bytes(message[-4:], "big"):
                raise BrokenStream("a message whose checksum is wrong")
            end = _PRELUDE.size + head
            found.append(Message(_headers(message[_PRELUDE.size : end]), message[end:-4]))
        return found


def _headers(data: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            start = at + 1
            at = start + data[at]
            name, kind = data[start:at].decode(), data[at]
            at += 1
            if kind in (6, 7):
                (size,) = struct.unpack_from("!H", data, at)
                at += 2
                if kind == 7:
                    headers[name] = data[at : at + size].decode()
            else:
                size = _SIZES[kind]
            at += size
            if at > len(data):
                raise BrokenStream("a header that is cut off")
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise BrokenStream("a header that cannot be read") from error
    return headers
