"""Asking a running gateway for a change; where none runs, making it here."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.control.changes import ChangeRefused, Changes, DrainForAll
from gateway.control.unix_socket import usable

SOCKET = "control.sock"
MAX_LINE = 256 * 1024
TIMEOUT = 10.0
"""Seconds for a request to arrive whole, and again for all workers to apply a change."""


def change(
    request: Mapping[str, Any],
    *,
    policies: Path,
    state_dir: Path,
    env: Mapping[str, str],
    kept: bool = True,
    drain_for_all: DrainForAll | None = None,
) -> dict[str, Any]:
    """Make a change (``gateway.control.changes``). The result has ``confirmed`` where a running gateway made it.

    ``kept`` False: without a running gateway nothing in ``state_dir`` is known to be its own, and it is not used.
    Raises ``gateway.control.changes.REFUSALS`` and ``OSError``.
    """
    where = identity(policies)
    result = send_request(state_dir, {**request, "policies": where}) if where is not None else None
    if result is None:
        return Changes(policies, state_dir if kept else None, env, drain_for_all).make(request)
    if "error" in result:
        raise ChangeRefused(result["error"])
    return result


def send_request(state_dir: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The response of this state folder's gateway; None where none runs, or where it serves another policy folder.

    Raises ``OSError`` where one runs that does not let us connect.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(3 * TIMEOUT)
        try:
            with usable(state_dir / SOCKET) as address:
                sock.connect(address)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return None
        sock.sendall(json.dumps(request).encode() + b"\n")
        with sock.makefile("rb") as stream:
            line = stream.readline(MAX_LINE)
    if not line:
        raise ConnectionResetError(0, "the gateway sent no response")
    answer: dict[str, Any] = json.loads(line)
    return None if answer.get("elsewhere") else answer


def identity(folder: Path) -> list[int] | None:
    """Device and inode: the same for a folder and for every mount of it."""
    try:
        stat = folder.stat()
    except OSError:
        return None
    return [stat.st_dev, stat.st_ino]
