"""``python -m engine rank``: a rank on this host, for an engine on another.

It listens, and has who connects prove that it knows the secret. Then a process of its own is started for the rank, and
when that has ended, as it does with its rank 0, the next may connect: so each starts clean.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from engine.errors import StartupError
from engine.nodes.address import Address
from engine.nodes.proof import NotProven, prove_to_rank0

log = logging.getLogger("engine.nodes")


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
        while True:
            sock, peer = server.accept()
            with sock:
                try:
                    key = prove_to_rank0(sock, secret)
                except NotProven as error:
                    log.warning("%s is refused: %s", peer[0], error)
                    continue
                log.info("a rank starts for the engine on %s", peer[0])
                process = _start(sock, key, model, device)
            code = _wait(process)
            log.info("the rank has ended (%d); the next engine may connect", code)


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
