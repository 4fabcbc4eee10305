"""Messages over a socket pair: a length, then the pickled message.

Pickle is safe here: both ends are ours, and the socket has no name that anyone else could connect to.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 18


def encode(message: Any) -> bytes:
    return frame(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def frame(payload: bytes) -> bytes:
    """A message that is pickled already."""
    return _LENGTH.pack(len(payload)) + payload


class MessageDecoder:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        self._buffer += data
        messages: list[Any] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(pickle.loads(memoryview(self._buffer)[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return messages


class Bell:
    """Ends a wait for messages, from any thread, now or when it begins."""

    def __init__(self) -> None:
        self.file = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def ring(self) -> None:
        os.eventfd_write(self.file, 1)

    def hush(self) -> None:
        """Called before looking for what it was rung for."""
        try:
            os.eventfd_read(self.file)
        except BlockingIOError:
            return


class Channel:
    """The engine process's end: blocking, because that process has nothing else to do."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = MessageDecoder()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def add(self, bell: Bell) -> None:
        """From now on a wait also ends when it rings."""
        self._poll.register(bell.file, select.POLLIN)

    def wait(self, timeout: float) -> None:
        """Until a message has come or a bell rings, or so many seconds."""
        self._poll.poll(timeout * 1000)

    def gone(self) -> None:
        """Waits until the other process is gone, whatever it has said before."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        poll.poll(None)

    def receive(self, timeout: float | None = 0.0) -> list[Any]:
        """All messages that have come. Waits up to ``timeout`` seconds for the first (``None``: for ever), or until a
        bell rings.

        Raises ``EOFError`` when the other process is gone.
        """
        messages: list[Any] = []
        wait = None if timeout is None else timeout * 1000
        own = self._socket.fileno()
        while not messages and (ready := self._poll.poll(wait)):
            if all(file != own for file, _ in ready):
                return []
            try:
                data = self._socket.recv(_CHUNK)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError("the other process is gone")
            messages = self._decoder.feed(data)
        return messages

    def send(self, message: Any) -> None:
        """Raises ``EOFError`` when the other process is gone."""
        try:
            self._socket.sendall(encode(message))
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError("the other process is gone") from None
