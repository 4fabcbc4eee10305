"""One process that serves requests: ``python -m gateway.process.worker``, started by ``tollgate serve``.

Settings come from the environment (``gateway.settings``); so does the number of the listening socket's file
descriptor, which the supervisor holds open across a worker's death so that no connection is refused meanwhile.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import math
import os
import signal
import socket
import sys
from types import FrameType

import uvicorn

from gateway.children import watchdog
from gateway.observe import logs, room
from gateway.server.connection import Connection
from gateway.server.connection_limits import ConnectionLimiter, ConnectionLimits, descriptors
from gateway.settings import SOCKET_FD, Settings, SettingsError

log = logging.getLogger(__name__)

FEW = 256
"""Connections, below which an operator should know."""
_KEEP_ALIVE = 75
"""Seconds an idle connection is kept: longer than the pools of common clients and proxies, which must be the ones
to close, or a request could meet a connection just being closed."""


def main() -> int:
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        settings = Settings.from_env(os.environ)
        fd = int(os.environ[SOCKET_FD])
        pulse = os.environ.get(watchdog.PULSE_FD)
    except (SettingsError, KeyError, ValueError) as error:
        print(f"{error}. Workers are started by 'tollgate serve'.", file=sys.stderr)  # noqa: T201
        return 2
    logs.set_up(settings.log_level, settings.log_format, batches=True)
    faulthandler.register(watchdog.TELL, all_threads=True)
    room.share_or_not()
    from gateway.app import build_app  # it imports prometheus_client, which must know by then

    config = uvicorn.Config(
        build_app(settings, pulse=int(pulse) if pulse else None),
        loop="uvloop",
        http=_connections(settings),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(settings.drain_timeout),
    )
    server = uvicorn.Server(config)
    _settle_heap()
    server.run(sockets=[socket.socket(fileno=fd)])
    return 0 if server.started else 3


def _connections(settings: Settings) -> type[Connection]:
    """Connections within bounds of number, bytes and time."""
    limit = descriptors()
    room = ConnectionLimits.of(
        settings.max_connections,
        settings.max_unauthenticated,
        settings.max_unauthenticated_per_address,
        descriptors=limit,
    )
    log.log(
        logging.WARNING if room.most < FEW else logging.INFO,
        "room for %d connections of clients, %d of them unauthenticated (of %d file descriptors; ulimit -n)",
        *(room.most, room.strangers, limit),
    )

    class Bounded(Connection):
        patience = settings.read_timeout
        stall = settings.write_timeout
        max_rest = settings.max_body_bytes
        limiter = ConnectionLimiter(room)

    return Bounded


def _settle_heap() -> None:
    """Keep the garbage collector from going over what never becomes garbage: modules, classes, schemas.

    What a request leaves behind is mostly freed at once by its reference count; with Python's own threshold of 700
    objects the collector would still run several times for each (measured: a fifth of all time under load).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _leave(number: int, frame: FrameType | None) -> None:
    # In force before uvicorn takes over the signal, and again when it raises it anew at its end.
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
