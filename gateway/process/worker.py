"""One process that serves requests: ``python -m gateway.process.worker``, started by ``tollgate serve``.

Settings come from the environment (``gateway.settings``); so do the file descriptors of the listening
sockets, which the supervisor keeps open when a worker dies so that no connection is refused meanwhile.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from gateway.children import watchdog
from gateway.observe import logs
from gateway.observe.prometheus import files as metric_files
from gateway.process.listener import accepting
from gateway.server.connection import Connection
from gateway.server.connection_limits import ConnectionLimiter, ConnectionLimits, descriptors
from gateway.settings import SOCKET_FDS, Settings, SettingsError

log = logging.getLogger("gateway.process.worker")  # it runs as __main__

FEW_CONNECTIONS = 256
"""Connections: fewer are logged as a warning."""
_KEEP_ALIVE = 75
"""Seconds an idle connection is kept: longer than the pools of common clients and proxies, which must be the ones
to close, or a request could meet a connection just being closed."""


class WorkerServer(uvicorn.Server):
    """uvicorn's server with a listening socket of its own, beside those of other workers.

    The sockets of all workers listen on one port (``SO_REUSEPORT``), over which the kernel spreads connections evenly.
    A worker that hangs or has died would keep those of its own socket waiting: the others accept them.
    """

    def __init__(
        self, config: uvicorn.Config, siblings: Sequence[socket.socket], mark: Path | None = None
    ) -> None:
        """``siblings``: the listening sockets of the other workers. ``mark``: a file to make once this one accepts."""
        super().__init__(config)
        self._siblings = siblings
        self._mark = mark

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._mark is not None:
            self._mark.touch()

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second."""
        for sibling in self._siblings:
            await self._accept_waiting(sibling)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for sibling in self._siblings:
            sibling.close()
        await super().shutdown(sockets)

    async def _accept_waiting(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # mostly that none waits
                return
            connection.setblocking(False)
            await loop.connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> asyncio.Protocol:
        """As ``uvicorn.Server.startup`` makes one."""
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def main() -> int:
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        settings = Settings.from_env(os.environ)
        ports = [[int(fd) for fd in port.split()] for port in os.environ[SOCKET_FDS].split(";")]
        pulse = os.environ.get(watchdog.PULSE_FD)
    except (SettingsError, KeyError, ValueError) as error:
        print(f"{error}. Workers are started by 'tollgate serve'.", file=sys.stderr)  # noqa: T201
        return 2
    logs.set_up(settings.log_level, settings.log_format, batches=True)
    logs.take_uncaught()
    faulthandler.register(watchdog.DUMP_STACK, all_threads=True)
    metric_files.share_or_not()
    from gateway.app import build_app  # prometheus_client reads the environment when it is imported

    config = uvicorn.Config(
        build_app(settings, pulse=int(pulse) if pulse else None),
        loop="uvloop",
        http=_connection_class(settings),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(settings.drain_timeout),
    )
    own = [socket.socket(fileno=fds[0]) for fds in ports]
    if all(len(fds) == 1 for fds in ports):
        own = [handle for listener in own for handle in accepting(listener)]
    siblings = [socket.socket(fileno=fd) for fds in ports for fd in fds[1:]]
    server = WorkerServer(config, siblings, settings.started and settings.started / str(settings.worker))
    _tune_garbage_collection()
    server.run(sockets=own)
    return 0 if server.started else 3


def _connection_class(settings: Settings) -> type[Connection]:
    """The connection class, with the limits of the settings."""
    limit = descriptors()
    limits = ConnectionLimits.of(
        settings.max_connections,
        settings.max_unauthenticated,
        settings.max_unauthenticated_per_address,
        descriptors=limit,
    )
    log.log(
        logging.WARNING if limits.total < FEW_CONNECTIONS else logging.INFO,
        "at most %d client connections, %d of them unauthenticated (of %d file descriptors; ulimit -n)",
        *(limits.total, limits.unauthenticated, limit),
    )

    class Bounded(Connection):
        read_timeout = settings.read_timeout
        write_timeout = settings.write_timeout
        max_unread_body = settings.max_body_bytes
        limiter = ConnectionLimiter(limits)

    return Bounded


def _tune_garbage_collection() -> None:
    """Keep the garbage collector from scanning what never becomes garbage: modules, classes, schemas.

    Most objects of a request are freed at once by their reference count; with Python's default threshold of 700 the
    collector would still run several times a request (measured: a fifth of all time under load).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _exit(number: int, frame: FrameType | None) -> None:
    # Used before uvicorn takes over the signal, and when it raises it again at its end.
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
