"""The protocol between a gateway worker and the sidecar.

A frame is two little-endian uint32 (bytes of the header, bytes of the payload), the header as JSON, the payload as it
is. Both sides greet first with ``HELLO``. After that the gateway sends ``{"id", "op", "tenant", …}`` or
``{"cancel": id}``, and the sidecar answers each ``id`` once, in any order: ``{"id", …}`` or
``{"id", "error", "message"}``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from gateway.sidecar.api import SidecarBusy, SidecarDown, SidecarError, SidecarLoading

VERSION = 3
HELLO: Mapping[str, Any] = {"tollgate-sidecar": VERSION}
MAX_FRAME = 64 * 2**20
"""Bytes of a header and its payload together."""

_LENGTHS = struct.Struct("<II")
_ERRORS: Mapping[str, type[SidecarError]] = {
    "busy": SidecarBusy,
    "down": SidecarDown,
    "loading": SidecarLoading,
    "error": SidecarError,
}
_NAMES = {kind: name for name, kind in _ERRORS.items()}


class ProtocolError(Exception):
    """The peer violated the protocol; the connection must be closed."""


class Frame(NamedTuple):
    header: dict[str, Any]
    payload: bytes


def encode(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """Raises ``SidecarError`` for what is too large for a frame."""
    try:
        head = orjson.dumps(header)
    except TypeError:  # half a surrogate pair, which is no character of UTF-8
        head = orjson.dumps(_mended(header))
    if len(head) + len(payload) > MAX_FRAME:
        raise SidecarError(f"too large for the sidecar: more than {MAX_FRAME} bytes at once")
    return _LENGTHS.pack(len(head), len(payload)) + head + payload


def _mended(value: Any) -> Any:
    """``value`` with a question mark in place of each half of a surrogate pair, so that offsets stay."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_mended(name): _mended(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(item) for item in value]
    return value


class FrameReader:
    """Splits a byte stream into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes. Raises ``ProtocolError``."""
        rest = self._rest
        rest += data
        frames: list[Frame] = []
        start = 0
        while len(rest) - start >= _LENGTHS.size:
            head, body = _LENGTHS.unpack_from(rest, start)
            if head + body > MAX_FRAME:
                raise ProtocolError(f"a frame of {head + body} bytes; at most {MAX_FRAME} are accepted")
            begin = start + _LENGTHS.size
            if len(rest) < begin + head + body:
                break
            try:
                header = orjson.loads(rest[begin : begin + head])
            except orjson.JSONDecodeError as error:
                raise ProtocolError("a header that is not JSON") from error
            if not isinstance(header, dict):
                raise ProtocolError("a header that is not an object")
            start = begin + head + body
            frames.append(Frame(header, bytes(rest[begin + head : start])))
        if start:
            del rest[:start]
        return frames


def greeted(header: Mapping[str, Any]) -> None:
    """Check the first header of a connection. Raises ``ProtocolError``."""
    if header.get("tollgate-sidecar") != VERSION:
        raise ProtocolError("the sidecar and the gateway are of different versions; restart the gateway")


def failure(error: SidecarError) -> dict[str, str]:
    """An error as a response's header."""
    return {"error": _NAMES.get(type(error), "error"), "message": str(error)}


def raise_failure(header: Mapping[str, Any]) -> None:
    """Raise the error in a response's header, if there is one."""
    if "error" in header:
        raise _ERRORS.get(header["error"], SidecarError)(header.get("message", "no reason given"))
