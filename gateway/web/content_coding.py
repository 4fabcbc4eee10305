"""Decompression of request bodies (RFC 9110, section 8.4), in small steps."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from gateway.errors import BadRequest, UnsupportedCoding

STEP = 2**18
"""Bytes that one step yields at most: about a millisecond of work."""
MEMBERS = 1000
"""Gzip members in a body at most: empty ones cost work here, and their sender next to nothing."""
ACCEPTED = "gzip, deflate"

_GZIP, _ZLIB, _RAW = zlib.MAX_WBITS | 16, zlib.MAX_WBITS, -zlib.MAX_WBITS


def coding_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """How the body is compressed: ``gzip``, ``deflate``, or None. Raises ``UnsupportedCoding``."""
    named = [value for name, value in headers if name == b"content-encoding"]
    if not named:
        return None
    codings = [one.strip().lower() for one in str(b",".join(named), "latin-1").split(",")]
    codings = [one.removeprefix("x-") for one in codings if one and one != "identity"]
    if not codings:
        return None
    if len(codings) == 1 and codings[0] in ("gzip", "deflate"):
        return codings[0]
    raise UnsupportedCoding(
        f"The request body is encoded as '{', '.join(codings)}', which is not supported here. Send it uncompressed, or "
        "with 'content-encoding: gzip' or 'content-encoding: deflate'.",
        headers={"accept-encoding": ACCEPTED},
    )


class Inflater:
    """Decompresses a body as it arrives. Its output must be counted: a few bytes can expand a thousandfold."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._start = b""
        self._members = 1
        self._stream: zlib._Decompress | None = None

    def feed(self, part: bytes) -> Iterator[bytes]:
        """What ``part`` holds, in steps of at most ``STEP`` bytes. Raises ``BadRequest``."""
        rest = part
        if self._stream is None:
            rest = self._start = self._start + part
            if len(rest) < 2:
                return
            self._stream = zlib.decompressobj(_GZIP if self._coding == "gzip" else _deflated(rest))
        try:
            while rest:
                if self._stream.eof:
                    self._members += 1
                    if self._coding != "gzip" or self._members > MEMBERS:
                        raise zlib.error("there is data after its end")
                    self._stream = zlib.decompressobj(_GZIP)
                piece = self._stream.decompress(rest, STEP)
                yield piece
                rest = self._stream.unused_data or self._stream.unconsumed_tail
                if len(piece) == STEP and not rest and not self._stream.eof:
                    # All input was read, but the output did not fit into the step.
                    yield self._stream.decompress(b"", STEP)
        except zlib.error as error:
            raise _broken(self._coding, str(error)) from None

    def end(self) -> None:
        """Raises ``BadRequest`` where the body is truncated. An empty body is valid."""
        if self._start and (self._stream is None or not self._stream.eof):
            raise _broken(self._coding, "its end is missing")


def _deflated(start: bytes) -> int:
    """HTTP's ``deflate`` is zlib's format, but some clients send raw deflate."""
    zlibs = start[0] & 0x0F == 8 and int.from_bytes(start[:2], "big") % 31 == 0
    return _ZLIB if zlibs else _RAW


def _broken(coding: str, why: str) -> BadRequest:
    return BadRequest(
        f"The request body cannot be decompressed as '{coding}': {why}. Send it complete, or uncompressed.",
        code="invalid_encoding",
    )
