"""Frames between two engines: a length, a kind, what they say, and a digest with a key that both have.

    length of the body   uint32, network order
    kind                 uint8
    body                 JSON, or as its kind says
    digest               16 bytes of BLAKE2b of the sender's count of frames, the kind, the length and the body

Before both have proven that they know the secret the digest has no key. So what was changed on the way, by chance or
by somebody, what was left out, and what was sent before, is refused; nothing of it is encrypted.
"""

from __future__ import annotations

import hmac
import json
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from hashlib import blake2b
from typing import Any

_HEAD = struct.Struct("!IB")
_COUNT = struct.Struct("!QBI")
_DIGEST = 16
INDEX = struct.Struct("!I")
LENT = struct.Struct("!II16s")
"""Of a block in shared memory: its index, its slot, its digest."""
GREETING, LONGEST = 2**16, 2**26
"""Bytes of a body other than a block's, before the other side has proven who it is, and after: a prompt of millions of
tokens."""


_SMALL = 2**14
"""Bytes that are rather copied than sent piece by piece."""


class Kind(IntEnum):
    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5
    """In place of any answer: why."""
    PREFILL = 6
    """A prompt, whose blocks are asked for."""
    BLOCK = 7
    """Its index, and its content."""
    LENT = 8
    """Blocks that lie in shared memory."""
    RETURNED = 9
    """Those were copied: how many."""
    END = 10
    """No more blocks come."""
    WAITING = 11
    """The engine is well, and the prompt waits or is being computed."""


class BrokenFrame(Exception):
    """The other engine is gone, or what came is not what was sent."""


class CorruptFrame(BrokenFrame):
    """Its digest is wrong."""


class Wire:
    """One end of a connection. One thread may send, and one receive, at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sends, self.receives = b"", b""
        """Keys of the digests."""
        self._sent = self._received = 0

    def send(self, kind: Kind, *parts: bytes | memoryview) -> None:
        """Raises ``BrokenFrame``."""
        length = sum(map(len, parts))
        digest = self._begin(self.sends, self._sent, kind, length)
        for part in parts:
            digest.update(part)
        self._sent += 1
        pieces = [_HEAD.pack(length, kind), *parts, digest.digest()]
        try:
            if length <= _SMALL:
                self.sock.sendall(b"".join(pieces))
            else:
                for piece in pieces:
                    self.sock.sendall(piece)
        except OSError as error:
            raise BrokenFrame(str(error) or type(error).__name__) from None

    def say(self, kind: Kind, **body: Any) -> None:
        """Raises ``BrokenFrame``."""
        self.send(kind, json.dumps(body).encode())

    def receive(
        self,
        block_bytes: int = 0,
        place: Callable[[int], memoryview] | None = None,
        deadline: float | None = None,
    ) -> tuple[Kind, bytes]:
        """The next frame. A block's content goes to the ``place`` for its index, and is not in the body that is
        returned. ``deadline``: by ``time.monotonic()``. Raises ``BrokenFrame``, ``CorruptFrame``."""
        length, number = _HEAD.unpack(self._read(_HEAD.size, deadline))
        try:
            kind = Kind(number)
        except ValueError:
            raise CorruptFrame(f"there is no frame of kind {number}") from None
        digest = self._begin(self.receives, self._received, kind, length)
        self._received += 1
        if kind is Kind.BLOCK and place is not None:
            if length != INDEX.size + block_bytes:
                raise CorruptFrame(f"a block of {length} bytes, not {INDEX.size + block_bytes}")
            body = self._read(INDEX.size, deadline)
            content = place(*INDEX.unpack(body))
            self._read_into(content, deadline)
            digest.update(body)
            digest.update(content)
        else:
            if length > (LONGEST if self.receives else GREETING):
                raise CorruptFrame(f"a frame of {length} bytes")
            body = self._read(length, deadline)
            digest.update(body)
        if not hmac.compare_digest(digest.digest(), self._read(_DIGEST, deadline)):
            raise CorruptFrame(f"a frame of kind {kind.name} is not what was sent")
        return kind, body

    def expect(self, kind: Kind, deadline: float | None = None) -> dict[str, Any]:
        """A frame of this kind, whose body is JSON. Raises ``BrokenFrame``, with what was said if it is ``REFUSED``."""
        found, body = self.receive(deadline=deadline)
        said = read_json(body)
        if found is Kind.REFUSED:
            raise BrokenFrame(str(said.get("message")))
        if found is not kind:
            raise CorruptFrame(f"{found.name} came in place of {kind.name}")
        return said

    def content_digest(self, key: bytes, content: memoryview) -> bytes:
        """Of a block that is not sent, but lies in shared memory."""
        return blake2b(content, digest_size=_DIGEST, key=key).digest()

    def cut(self) -> None:
        """Ends what any thread is doing with it; who owns it closes it then."""
        with suppress(OSError):  # it is not connected any more
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.sock.close()

    def _begin(self, key: bytes, count: int, kind: Kind, length: int) -> Any:
        return blake2b(_COUNT.pack(count, kind, length), digest_size=_DIGEST, key=key)

    def _read(self, size: int, deadline: float | None) -> bytes:
        data = bytearray(size)
        self._read_into(memoryview(data), deadline)
        return bytes(data)

    def _read_into(self, place: memoryview, deadline: float | None) -> None:
        while place:
            try:
                self.sock.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
                count = self.sock.recv_into(place)
            except TimeoutError:
                raise BrokenFrame("nothing came in time") from None
            except OSError as error:
                raise BrokenFrame(str(error) or type(error).__name__) from None
            if not count:
                raise BrokenFrame("the connection was closed")
            place = place[count:]


def read_json(body: bytes) -> dict[str, Any]:
    """Raises ``CorruptFrame``."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise CorruptFrame("a frame that should be JSON is not") from None
    if not isinstance(found, dict):
        raise CorruptFrame("a frame that should be an object is not")
    return found
