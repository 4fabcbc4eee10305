"""Messages between hosts: as ``engine/channel.py`` has them, each with a MAC under the connection's key.

So nobody on the way can change, repeat or insert one, and nothing is unpickled that the other side did not send. What
they say can be read on the way. A frame: length of the payload (4 bytes), MAC of direction, number and payload (32),
payload.
"""

from __future__ import annotations

import hmac
import pickle
import select
import socket
import struct
from contextlib import suppress
from typing import Any

_HEAD = struct.Struct("!I32s")
_NUMBER = struct.Struct("!Q")
_LONGEST = 2**28
"""Bytes of a message."""
_IDLE, _INTERVAL, _PROBES = 1, 1, 3
"""Seconds without a word after which the other host is asked whether it is still there, between two questions, and how
many of them stay unanswered before it is taken for gone: 4 s in all."""


class SealedChannel:
    def __init__(self, sock: socket.socket, key: bytes, *, rank0: bool) -> None:
        """``rank0``: whether this side is rank 0's."""
        self.socket = sock
        self._key = key
        self._ours, self._theirs = (b"rank 0", b"node") if rank0 else (b"node", b"rank 0")
        self._sent = self._received = 0
        self._buffer = bytearray()
        keep_alive(sock)

    def send(self, message: Any) -> None:
        """Raises ``EOFError`` when the other side is gone."""
        self.send_payload(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def send_payload(self, payload: bytes) -> None:
        """``send`` of a message that is pickled already."""
        mac = self._mac(self._ours, self._sent, payload)
        self._sent += 1
        try:
            self.socket.sendall(_HEAD.pack(len(payload), mac) + payload)
        except OSError:
            raise EOFError("the other host is gone") from None

    def receive(self, timeout: float | None = None) -> list[Any]:
        """The next message, and nothing else; ``timeout`` must be ``None``: it waits for ever.

        Raises ``EOFError`` when the other side is gone, or what comes is not from it."""
        length, mac = _HEAD.unpack(self._read(_HEAD.size))
        if length > _LONGEST:
            raise EOFError("what came is no message")
        payload = self._read(length)
        if not hmac.compare_digest(mac, self._mac(self._theirs, self._received, payload)):
            raise EOFError("what came is not from the other rank")
        self._received += 1
        return [pickle.loads(payload)]

    def wait(self, timeout: float) -> bool:
        """Whether something comes within so many seconds."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(self._buffer or poll.poll(timeout * 1000))

    def gone(self, *, speaking: bool) -> None:
        """Waits until the other side is gone or, unless it is ``speaking``, says something unasked."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP | (0 if speaking else select.POLLIN))
        poll.poll(None)

    def hang_up(self) -> None:
        """Ends the connection for both sides; who waits in ``gone`` goes on."""
        with suppress(OSError):  # the other side was faster
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        self.socket.close()

    def _mac(self, who: bytes, number: int, payload: bytes) -> bytes:
        return hmac.digest(self._key, who + b"\0" + _NUMBER.pack(number) + payload, "sha256")

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            try:
                data = self.socket.recv(1 << 18)
            except OSError:
                data = b""
            if not data:
                raise EOFError("the other host is gone")
            self._buffer += data
        found = bytes(self._buffer[:count])
        del self._buffer[:count]
        return found


def keep_alive(sock: socket.socket) -> None:
    """A host that vanishes without a word (power, network) is noticed, too."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE),
        ("TCP_KEEPINTVL", _INTERVAL),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", 1000 * (_IDLE + _INTERVAL * _PROBES)),
    ):
        if hasattr(socket, name):  # Linux has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
