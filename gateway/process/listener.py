"""The sockets that ``tollgate serve`` listens on."""

from __future__ import annotations

import errno
import socket
import sys
from typing import Any

BACKLOG = 2048
"""Connections that may wait to be accepted."""
ACCEPTED = 8
"""Connections that a worker accepts in one turn of its loop."""


class CannotListen(Exception):
    """The address is not available; the message says what to do about it."""


def listen(host: str, port: int, sockets: int = 1, *, option: str = "--port") -> list[socket.socket]:
    """Listening sockets on one port, over which the kernel spreads connections. Raises ``CannotListen``.

    Where it cannot, as on systems other than Linux, there is only one.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CannotListen(
            f"'{host}' is no address of this machine ({error}). Try --host 127.0.0.1"
        ) from None
    family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    several = sockets > 1 and sys.platform == "linux"
    listeners: list[socket.socket] = []

    def bound(address: tuple[Any, ...], *, shared: bool) -> socket.socket:
        listener = socket.socket(family, kind, protocol)
        listeners.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        listener.bind(address)
        return listener

    try:
        # A port that is shared could be another gateway's, too: whether it is free shows without sharing.
        first = bound(address, shared=False)
        if several:
            address = first.getsockname()
            listeners.remove(first)
            first.close()
            for _ in range(sockets):
                bound(address, shared=True)
        for listener in listeners:
            listener.listen(BACKLOG)
            listener.setblocking(False)
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise CannotListen(_explain(error, host, port, option)) from None
    return listeners


def accepting(listener: socket.socket) -> list[socket.socket]:
    """The socket and copies of it, of which the event loop accepts one connection each in a turn.

    From libuv 1.46 on, which uvloop is made of, it takes one connection of a socket and then serves whoever else is
    ready: with 16 requests in flight the 32nd of 32 new connections waited 130 ms.
    """
    # It is so already, but ``dup`` goes by what this object knows, and would have all of the socket's holders wait.
    listener.setblocking(False)
    return [listener, *(listener.dup() for _ in range(ACCEPTED - 1))]


def reachable(listener: socket.socket) -> tuple[str, int]:
    """The address at which this machine itself reaches a listening socket."""
    host, port = listener.getsockname()[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


def _explain(error: OSError, host: str, port: int, option: str) -> str:
    def take(other: int) -> str:
        return f"{option} {other}" + (f" (make serve PORT={other})" if option == "--port" else "")

    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} on {host} is in use by another program. Stop that one, or take another port: "
                f"{take(port + 1 if port < 65535 else 8000)}; 0 takes any that is free"
            )
        case errno.EACCES:
            return f"port {port} needs special rights. Take one from 1024 up: {take(8000)}"
        case errno.EADDRNOTAVAIL:
            return f"'{host}' is no address of this machine. Try --host 127.0.0.1, or --host 0.0.0.0 for all"
        case _:
            return f"cannot listen on {host}, port {port}: {error.strerror or error}"
