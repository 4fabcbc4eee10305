"""Amazon's event-stream frames, written: the other side of ``gateway.wire.bedrock.event_stream``."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson

RECORDED = Path(__file__).parents[3] / "recorded" / "bedrock"


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


def recorded(name: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream."""
    lines = map(orjson.loads, (RECORDED / f"{name}.jsonl").read_bytes().splitlines())
    return [(line["event"], line["payload"]) for line in lines]


def stream_of(name: str) -> bytes:
    return b"".join(event(kind, payload) for kind, payload in recorded(name))
