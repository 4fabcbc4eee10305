"""Sockets to listen on, and uvicorn as a part of a larger life."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from engine.errors import StartupError

_SEND_BUFFER = 2**18
"""Bytes that the kernel keeps of an answer, about (Linux doubles it): 600 tokens and more."""

_BACKLOG = 2048
"""Connections that wait to be accepted, as uvicorn has it."""

KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than a gateway's pool keeps it, so that the pool
closes it, and never while a request is being sent."""


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def take_over(self, listener: socket.socket) -> None:
        """Listen on ``listener`` in place of where it listened before, whose connections it keeps."""
        before = list(self.servers)
        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_server(self._protocol, sock=listener, backlog=_BACKLOG))
        for one in before:
            one.close()

    def _protocol(self) -> asyncio.Protocol:
        """As ``uvicorn.Server.startup`` makes one."""
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals are handled here: uvicorn would raise them again after a clean exit, which would then fail.
        yield


def bind(host: str, port: int, *, shared: bool = False, option: str = "--port") -> socket.socket:
    """Bound but not listening: a port in use is detected at once, and clients cannot connect before the model is
    loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Connections inherit it. By default the kernel buffers megabytes for a client that does not read.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise StartupError(
            f"Cannot listen on {host}:{port}: {error.strerror}. Choose another {option}."
        ) from None
    return listener


def bind_first(host: str, port: int, *, shared: bool, standby: int | None) -> socket.socket:
    """Where an engine listens first: ``standby`` where it is to take over from another."""
    if standby is None:
        return bind(host, port, shared=shared)
    return bind(host, standby, option="--standby-port")


def bind_unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        raise StartupError(
            f"Cannot listen on {path}: {why}. Remove what is there, or choose another --uds."
        ) from None
    path.chmod(0o600)
    return listener


def url_of(listener: socket.socket) -> str:
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def first(*awaitables: Coroutine[Any, Any, Any]) -> None:
    """Waits until one of them is done, and cancels the others; results and exceptions are ignored."""
    tasks = {asyncio.ensure_future(awaitable) for awaitable in awaitables}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
