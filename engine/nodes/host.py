"""``python -m engine rank``: a rank on this host, for an engine on another.

It listens, and has who connects prove that it knows the secret. Then a process of its own is started for the rank, and
when that has ended, as it does with its rank 0, the next may connect: so each starts clean.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from engine.channel import Bell
from engine.errors import StartupError
from engine.nodes.address import Address
from engine.nodes.proof import NotProven, prove_to_rank0

log = logging.getLogger("engine.nodes")

_GUESTS = 32
"""Connections that have not proven themselves yet; beyond that the oldest is closed."""


def serve(
    address: Address, model: Path, secret: bytes, device: str | None, announce: Callable[[Address], None]
) -> None:
    """For ever. ``device``: the rank's; ``None``: the first of the kind that rank 0 has. Raises ``StartupError``."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        server = socket.create_server(address, family=family)
    except OSError as error:
        raise StartupError(f"--listen {address}: {error.strerror or error}.") from error
    with server:
        announce(address)
        bell = Bell()
        while True:
            sock, host, key = _proven(server, secret, bell)
            with sock:
                log.info("a rank starts for the engine on %s", host)
                process = _start(sock, key, model, device)
            code = _wait(process)
            log.info("the rank has ended (%d); the next engine may connect", code)


def _proven(server: socket.socket, secret: bytes, bell: Bell) -> tuple[socket.socket, str, bytes]:
    """The first that proves itself, its host, and the connection's key. Each has a thread: one that says nothing, or
    little, holds nobody up."""
    proven: SimpleQueue[tuple[socket.socket, str, bytes]] = SimpleQueue()
    guests: list[socket.socket] = []

    def hear(sock: socket.socket, host: str) -> None:
        try:
            proven.put((sock, host, prove_to_rank0(sock, secret)))
        except NotProven as error:
            log.warning("%s is refused: %s", host, error)
            sock.close()
        bell.ring()

    poll = select.poll()
    for file in (server.fileno(), bell.file):
        poll.register(file, select.POLLIN)
    # Who has left before it is accepted is not waited for.
    server.setblocking(False)
    while proven.empty():
        poll.poll()
        bell.hush()
        guests = [guest for guest in guests if guest.fileno() >= 0]
        with suppress(BlockingIOError):
            sock, peer = server.accept()
            guests.append(sock)
            threading.Thread(target=hear, args=(sock, peer[0]), daemon=True).start()
        if len(guests) > _GUESTS:
            _cut(guests.pop(0))
    found = proven.get()
    for guest in guests:
        if guest is not found[0]:
            _cut(guest)
    return found


def _cut(sock: socket.socket) -> None:
    """Its thread closes it."""
    with suppress(OSError):  # it is gone already
        sock.shutdown(socket.SHUT_RDWR)


def _start(sock: socket.socket, key: bytes, model: Path, device: str | None) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.worker.rank_process", str(sock.fileno()), "--node"],
        pass_fds=[sock.fileno()],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    # Not on the command line, which others can read.
    given = {"key": key.hex(), "model": str(model), "device": device}
    if process.stdin is not None:
        with suppress(BrokenPipeError), process.stdin as pipe:  # it has ended already: that is logged
            pipe.write(json.dumps(given).encode())
    return process


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
