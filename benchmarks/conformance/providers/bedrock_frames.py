"""Amazon's event-stream frames, written: the other side of ``gateway.wire.bedrock.event_stream``."""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import orjson


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """One message, its headers all strings."""
    written = b"".join(
        bytes([len(name.encode())])
        + name.encode()
        + b"\x07"
        + struct.pack("!H", len(value.encode()))
        + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(written) + len(payload), len(written))
    whole = prelude + struct.pack("!I", crc32(prelude)) + written + payload
    return whole + struct.pack("!I", crc32(whole))


def event(kind: str, payload: Any) -> bytes:
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, payload if isinstance(payload, bytes) else orjson.dumps(payload))


def exception(kind: str, message: str) -> bytes:
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return frame(headers, orjson.dumps({"message": message}))
