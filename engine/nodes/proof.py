"""Two hosts prove to each other that they know the same secret, before anything else is exchanged.

    node → rank 0:  magic, nonce of the node
    rank 0 → node:  nonce of rank 0, HMAC(secret, "rank 0", both nonces)
    node → rank 0:  HMAC(secret, "node", both nonces)

All of fixed size, and nothing is unpickled. Who connects proves first, so a stranger gets nothing that he could try
secrets against. From the secret and the nonces follows a key for this connection's messages (``sealed_channel.py``).
HMAC is that of https://www.rfc-editor.org/rfc/rfc2104 with SHA-256.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from pathlib import Path

from engine.errors import StartupError

_MAGIC = b"tollgate ranks 1\n"
_NONCE = 32
_MAC = 32
_SHORTEST = 16
"""Bytes of a secret."""
TIMEOUT = 10.0
"""Seconds for a proof."""


class NotProven(Exception):
    """The other side does not know the secret, or is no rank at all."""


class Busy(Exception):
    """The node says nothing yet, as it does while it works for another rank 0."""


def read_secret(path: Path, flag: str) -> bytes:
    """Raises ``StartupError`` where there is none, it is too short, or others may read it."""
    try:
        secret = path.read_bytes().strip()
        others = path.stat().st_mode & 0o077
    except OSError as error:
        raise StartupError(f"{flag} {path} cannot be read: {error.strerror}.") from error
    if others:
        raise StartupError(f"{flag} {path} can be read by others than its owner: chmod 600 {path}")
    if len(secret) < _SHORTEST:
        raise StartupError(
            f"{flag} {path} holds {len(secret)} bytes, fewer than {_SHORTEST}: openssl rand -hex 32 > {path}"
        )
    return secret


def prove_to_node(sock: socket.socket, secret: bytes) -> bytes:
    """Rank 0's side. Returns the connection's key. Raises ``NotProven`` or ``Busy``."""
    deadline = time.monotonic() + TIMEOUT
    sock.settimeout(TIMEOUT)
    try:
        try:
            greeting = _read(sock, len(_MAGIC) + _NONCE, deadline)
        except TimeoutError as error:
            raise Busy from error
        if not greeting.startswith(_MAGIC):
            raise NotProven("it is no rank of this version")
        nonces = secrets.token_bytes(_NONCE) + greeting[len(_MAGIC) :]
        sock.sendall(nonces[:_NONCE] + _mac(secret, b"rank 0", nonces))
        try:
            answer = _read(sock, _MAC, deadline)
        except EOFError:
            raise NotProven("it does not accept the secret") from None
    except EOFError:
        raise NotProven("it closed the connection") from None
    except OSError as error:
        raise NotProven(str(error)) from error
    if not hmac.compare_digest(answer, _mac(secret, b"node", nonces)):
        raise NotProven("it does not know the secret")
    sock.settimeout(None)
    return _mac(secret, b"key", nonces)


def prove_to_rank0(sock: socket.socket, secret: bytes) -> bytes:
    """The node's side. Returns the connection's key. Raises ``NotProven``."""
    deadline = time.monotonic() + TIMEOUT
    sock.settimeout(TIMEOUT)
    try:
        mine = secrets.token_bytes(_NONCE)
        sock.sendall(_MAGIC + mine)
        answer = _read(sock, _NONCE + _MAC, deadline)
        nonces = answer[:_NONCE] + mine
        if not hmac.compare_digest(answer[_NONCE:], _mac(secret, b"rank 0", nonces)):
            raise NotProven("it does not know the secret")
        sock.sendall(_mac(secret, b"node", nonces))
    except EOFError:
        raise NotProven("it closed the connection") from None
    except OSError as error:
        raise NotProven(str(error)) from error
    sock.settimeout(None)
    return _mac(secret, b"key", nonces)


def _mac(secret: bytes, who: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, who + b"\0" + nonces, "sha256")


def _read(sock: socket.socket, count: int, deadline: float) -> bytes:
    """Raises ``EOFError``, and ``TimeoutError`` at the ``deadline``, whatever came by then."""
    data = b""
    while len(data) < count:
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("it has not proven itself in time")
        sock.settimeout(left)
        more = sock.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data
