"""Decompression of request bodies (RFC 9110, section 8.4; RFC 8878), in small steps."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator

from gateway.errors import BadRequest, UnsupportedCoding
from gateway.server.headers import RequestHeaders

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

STEP = 2**18
"""Bytes that one step yields at most: about a millisecond of work."""
MEMBERS = 1000
"""Gzip members, or frames of zstd, in a body at most: empty ones cost work here, and their sender next to nothing."""
ACCEPTED = "gzip, deflate, zstd"
WINDOW_LOG = 23
"""Of a frame of zstd at most: 8 MiB, which its decoder may hold (RFC 9659)."""

_GZIP, _ZLIB, _RAW = zlib.MAX_WBITS | 16, zlib.MAX_WBITS, -zlib.MAX_WBITS


def coding_of(headers: RequestHeaders) -> str | None:
    """How the body is compressed: ``gzip``, ``deflate``, ``zstd``, or None. Raises ``UnsupportedCoding``."""
    named = headers.get(b"content-encoding")
    if named is None:
        return None
    codings = [one.strip().lower() for one in str(named, "latin-1").split(",")]
    codings = [one.removeprefix("x-") for one in codings if one and one != "identity"]
    if not codings:
        return None
    if len(codings) == 1 and codings[0] in ("gzip", "deflate", "zstd"):
        return codings[0]
    raise UnsupportedCoding(
        f"The request body is encoded as '{', '.join(codings)}', which is not supported here. Send it uncompressed, or "
        f"with one 'content-encoding' of {ACCEPTED}.",
        headers={"accept-encoding": ACCEPTED},
    )


class Inflater:
    """Decompresses a body as it arrives. Its output must be counted: a few bytes can expand a thousandfold."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._start = b""
        self._members = 1
        self._stream: zlib._Decompress | _Zstd | None = None

    def feed(self, part: bytes) -> Iterator[bytes]:
        """What ``part`` holds, in steps of at most ``STEP`` bytes. Raises ``BadRequest``."""
        rest = part
        if self._stream is None:
            rest = self._start = self._start + part
            if len(rest) < 2:
                return
            self._stream = self._decoder(rest)
        try:
            while rest:
                if self._stream.eof:
                    self._members += 1
                    if self._coding == "deflate" or self._members > MEMBERS:
                        raise zlib.error("there is data after its end")
                    self._stream = self._decoder(rest)
                piece = self._stream.decompress(rest, STEP)
                yield piece
                while len(piece) == STEP and not self._stream.unconsumed_tail and not self._stream.eof:
                    # All input was read, but the output did not fit into the step.
                    piece = self._stream.decompress(b"", STEP)
                    yield piece
                rest = self._stream.unused_data or self._stream.unconsumed_tail
        except (zlib.error, zstd.ZstdError) as error:
            raise _broken(self._coding, str(error)) from None

    def _decoder(self, start: bytes) -> zlib._Decompress | _Zstd:
        if self._coding == "zstd":
            return _Zstd()
        return zlib.decompressobj(_GZIP if self._coding == "gzip" else _deflated(start))

    def end(self) -> None:
        """Raises ``BadRequest`` where the body is truncated. An empty body is valid."""
        if self._start and (self._stream is None or not self._stream.eof):
            raise _broken(self._coding, "its end is missing")


class _Zstd:
    """One frame, as zlib's objects take theirs."""

    unconsumed_tail = b""

    def __init__(self) -> None:
        self._stream = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data if self._stream.eof else b""

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._stream.decompress(data, most)


def _deflated(start: bytes) -> int:
    """HTTP's ``deflate`` is zlib's format, but some clients send raw deflate."""
    zlibs = start[0] & 0x0F == 8 and int.from_bytes(start[:2], "big") % 31 == 0
    return _ZLIB if zlibs else _RAW


def _broken(coding: str, why: str) -> BadRequest:
    return BadRequest(
        f"The request body cannot be decompressed as '{coding}': {why}. Send it complete, or uncompressed.",
        code="invalid_encoding",
    )
