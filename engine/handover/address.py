"""Where an engine hands its blocks over: ``tcp://HOST:PORT`` or ``unix:///PATH``."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

_BACKLOG = 64
_LONGEST = 100
"""Bytes of a socket's path: the system takes 107."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str = ""
    port: int = 0
    path: str = ""
    """Of a Unix socket; then there is no host."""

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Raises ``ValueError``, with what is wrong."""
    wrong = f"{text!r} is not an address such as tcp://10.0.0.5:8200 or unix:///run/tollgate/prefill.sock"
    try:
        parts = urlsplit(text)
        port = parts.port
        (parts.hostname or "").encode(
            "idna"
        )  # as the system's calls do: a name that cannot be one is told here
    except ValueError:
        raise ValueError(wrong) from None
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError(wrong)
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/") and len(parts.path) > 1:
        if len(os.fsencode(parts.path)) > _LONGEST:
            raise ValueError(f"{text!r} is longer than a Unix socket's path can be ({_LONGEST} bytes)")
        return Address(path=parts.path)
    if parts.scheme == "tcp" and parts.hostname and port is not None and parts.path in ("", "/"):
        return Address(parts.hostname, port)
    raise ValueError(wrong)


def listen(address: Address) -> tuple[socket.socket, Address]:
    """The socket, and its address with the port that it got. A Unix socket is for its owner alone; one that an engine
    left which was killed is replaced. Raises ``OSError``."""
    if not address.path:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        sock = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
        return sock, Address(address.host, sock.getsockname()[1])
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _make_room(address)
        # The mode that a socket is made with is the process's matter, and other threads make files, too.
        before = os.umask(0o177)
        try:
            sock.bind(address.path)
        finally:
            os.umask(before)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock, address


def connect(address: Address, timeout: float) -> socket.socket:
    """Raises ``OSError``."""
    if not address.path:
        sock = socket.create_connection((address.host, address.port), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(address.path)
    except BaseException:
        sock.close()
        raise
    return sock


def _make_room(address: Address) -> None:
    """Removes a socket that nobody listens at. Raises ``OSError``."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(address.path).st_mode):
            raise FileExistsError(f"{address.path} is there, and no socket")
        try:
            connect(address, 1.0).close()
        except ConnectionRefusedError:
            os.unlink(address.path)
        else:
            raise OSError(f"another engine listens at {address}")
