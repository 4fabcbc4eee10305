"""Unix sockets at paths of any length."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.private import private_folder

_LONGEST_PATH = 100
"""Bytes, of the 104 or more that the address of a Unix socket may have."""


def listen(path: Path) -> socket.socket:
    """Raises ``OSError``, also where another gateway listens there."""
    private_folder(path.parent)
    sock = socket.socket(socket.AF_UNIX)
    try:
        with usable(path) as address:
            with socket.socket(socket.AF_UNIX) as other, suppress(FileNotFoundError, ConnectionRefusedError):
                other.connect(address)
                raise OSError("another gateway has this state folder")
            path.unlink(missing_ok=True)
            before = os.umask(0o177)
            try:
                sock.bind(address)
            finally:
                os.umask(before)
        sock.listen(8)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def usable(path: Path) -> Iterator[str]:
    """An address for a socket of any path; a long one is reached by its folder's file descriptor."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
