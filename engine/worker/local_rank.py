"""Another rank on this machine: a process that rank 0 starts and speaks to over a socket pair."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from typing import Any

from engine.channel import Channel, frame

_LEAVE = 5.0
"""Seconds that it gets to exit by itself."""


class LocalRank:
    where = ""
    """Beside its number, for messages."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.worker.rank_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            )
        self._channel = Channel(self._socket)
        self._inbox: deque[Any] = deque()
        """What came and was not asked for yet: it does not wait until one message was read to send the next."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Any) -> None:
        """Raises ``EOFError`` when it is gone."""
        self._channel.send(message)

    def send_payload(self, payload: bytes) -> None:
        """``send`` of a message that is pickled already."""
        try:
            self._socket.sendall(frame(payload))
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError("the other process is gone") from None

    def receive(self, timeout: float) -> Any:
        """Its next message. Raises ``EOFError`` when it is gone, ``TimeoutError`` if it gives no sign of life for so
        many seconds."""
        while not self._inbox:
            if not (came := self._channel.receive(timeout)):
                raise TimeoutError
            self._inbox.extend(message for message in came if message is not None)
        return self._inbox.popleft()

    def wait(self) -> bool:
        """Until it has ended; whether that was a failure."""
        return self._process.wait() != 0

    def stop(self) -> None:
        """Tells it to leave."""
        self._socket.close()

    def close(self) -> None:
        """Until it has left, by force if necessary."""
        self.stop()
        try:
            self._process.wait(_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
