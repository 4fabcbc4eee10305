"""A rank on another host, as rank 0 has it: a connection to ``python -m engine rank`` there."""

from __future__ import annotations

import logging
import socket
import time
from typing import Any

from engine.errors import StartupError
from engine.nodes.address import Address
from engine.nodes.proof import Busy, NotProven, prove_to_node
from engine.nodes.sealed_channel import SealedChannel

log = logging.getLogger("engine.nodes")

_PATIENCE = 120.0
"""Seconds within which a node has to be there: it may be starting, or still end what it did for a rank 0 before."""
_RETRY = 0.5


class RemoteRank:
    def __init__(self, address: Address, secret: bytes, *, patience: float = _PATIENCE) -> None:
        """Raises ``StartupError`` if nothing listens there within ``patience`` seconds, or it does not prove that it
        knows the secret."""
        self.where = f" on {address}"
        sock, key = _proven(address, secret, time.monotonic() + patience)
        self._channel = SealedChannel(sock, key, rank0=True)
        self.near, self.far = sock.getsockname()[0], sock.getpeername()[0]
        """This host's address, as the node knows it, and the node's."""

    def send(self, message: Any) -> None:
        """Raises ``EOFError`` when it is gone."""
        self._channel.send(message)

    def send_payload(self, payload: bytes) -> None:
        """``send`` of a message that is pickled already."""
        self._channel.send_payload(payload)

    def receive(self, timeout: float) -> Any:
        """Its next message. Raises ``EOFError`` when it is gone, ``TimeoutError`` if it gives no sign of life for so
        many seconds."""
        message = None
        while message is None:
            if not self._channel.wait(timeout):
                raise TimeoutError
            (message,) = self._channel.receive()
        return message

    def wait(self) -> bool:
        """Until it is gone; that is always a failure, as it stays as long as this side does."""
        self._channel.gone(speaking=False)
        return True

    def stop(self) -> None:
        """Tells it to leave."""
        self._channel.hang_up()

    def close(self) -> None:
        self._channel.close()


def _proven(address: Address, secret: bytes, deadline: float) -> tuple[socket.socket, bytes]:
    """The connection and its key."""
    told = False
    while True:
        sock = None
        try:
            sock = socket.create_connection(address, timeout=5.0)
            return sock, prove_to_node(sock, secret)
        except NotProven as error:
            _close(sock)
            raise StartupError(
                f"The node {address} is not trusted: {error}. Give it and this engine the same --nodes-secret."
            ) from error
        except Busy:
            reason = "it works for another engine"
        except OSError as error:
            reason = str(error)
        _close(sock)
        if time.monotonic() > deadline:
            raise StartupError(
                f"No rank answers at {address}: {reason}. Start python -m engine rank --listen {address} there."
            )
        if not told:
            log.info("waiting for the node %s: %s", address, reason)
            told = True
        time.sleep(_RETRY)


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()
