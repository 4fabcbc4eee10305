"""The life of the HTTP process: bind, start the engine process, serve, drain, exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, cast

import uvicorn
import uvloop

from engine.client import EngineClient
from engine.config import ServerConfig
from engine.errors import ShuttingDown, StartupError
from engine.extras import install_command
from engine.pooling.client import PoolingClient
from engine.server.protocol import Protocol
from engine.server.service import start
from engine.server.tracing import Tracer

log = logging.getLogger("engine.server")

_FAREWELL = 2.0
"""Seconds that connections get to read their error when the engine process has died or the drain is over."""

_SEND_BUFFER = 2**18
"""Bytes that the kernel keeps of an answer, about (Linux doubles it): 600 tokens and more."""

_BACKLOG = 2048
"""Connections that wait to be accepted, as uvicorn has it."""

_KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than a gateway's pool keeps it, so that the pool
closes it, and never while a request is being sent."""


def serve(config: ServerConfig, announce: Callable[[str], None]) -> int:
    """Runs until a signal, and returns the exit status: 0, or 1 if the engine process died.

    ``announce`` is called with the server's URL when it is ready. Raises ``StartupError``.
    """
    began = time.monotonic()
    with (
        _bind(config.host, config.port, shared=config.share_port)
        if config.standby_port is None
        else _bind(config.host, config.standby_port, option="--standby-port") as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_run(config, listener, announce, began))


async def _run(
    config: ServerConfig, listener: socket.socket, announce: Callable[[str], None], began: float
) -> int:
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    promoted = asyncio.Event()
    if config.standby_port is not None:
        loop.add_signal_handler(signal.SIGUSR1, promoted.set)

    service = await start(config, _tracer)
    client = service.client
    watching: asyncio.Task[None] | None = None
    try:
        await service.prepare()
        await _first(client.ready(), stop.wait())
        if stop.is_set():
            return 0
        app = await service.app()
        server = _Server(
            uvicorn.Config(
                app,
                http=cast(Any, partial(Protocol, write_timeout=config.write_timeout)),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await _first(server.listening.wait(), asyncio.wait({serving}))
        if serving.done():
            serving.result()
            return 1
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        announce(url)
        log.info("ready on %s in %.1f s: %s", url, time.monotonic() - began, config.served_model_name)

        watching = asyncio.create_task(_give_up_on_stuck(client, config.step_timeout))
        if config.standby_port is not None:
            await _first(promoted.wait(), stop.wait(), client.died.wait())
            if promoted.is_set() and not stop.is_set():
                await server.take_over(_bind(config.host, config.port, shared=True))
                log.info("took over %s:%d", config.host, config.port)
        await _first(stop.wait(), client.died.wait())
        server.should_exit = True
        if stop.is_set() and not client.died.is_set():
            if client.open_requests:
                log.info("draining %d requests (Ctrl-C again drops them)", client.open_requests)
            drained = asyncio.wait({serving}, timeout=config.drain_timeout)
            await _first(drained, hurry.wait(), client.died.wait())
            if not serving.done() and client.open_requests:
                log.warning("dropping %d requests", client.open_requests)
                client.fail_all(ShuttingDown("The engine is shutting down."))
        if client.died.is_set():
            log.error("the engine process died: leaving, so that both are started anew")
        await asyncio.wait({serving}, timeout=_FAREWELL)
        return 1 if client.died.is_set() else 0
    finally:
        if watching is not None:
            watching.cancel()
        await service.close()


def _tracer(config: ServerConfig) -> Tracer | None:
    """Imports OpenTelemetry where traces are asked for, and only there."""
    if config.otlp_traces_endpoint is None:
        return None
    try:
        from engine.server.otlp import OtlpTracer
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        log.error("no traces are sent: their packages come with: %s", install_command("otel"))
        return None
    log.info("traces go to %s", config.otlp_traces_endpoint)
    return OtlpTracer(config.otlp_traces_endpoint, config.otlp_traces_protocol)


async def _give_up_on_stuck(client: EngineClient | PoolingClient, timeout: float) -> None:
    """Kills the engine process once it has done no step for ``timeout`` seconds though requests are open."""
    last, since = client.last, time.monotonic()
    while timeout:
        await asyncio.sleep(min(1.0, timeout / 4))
        now = time.monotonic()
        if client.last is not last or not client.computing:
            last, since = client.last, now
        elif now - since >= timeout:
            log.error("no step in %.0f s: giving up the engine process (--step-timeout)", now - since)
            client.kill()
            return


class _Server(uvicorn.Server):
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


def _bind(host: str, port: int, *, shared: bool = False, option: str = "--port") -> socket.socket:
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


async def _first(*awaitables: Coroutine[Any, Any, Any]) -> None:
    """Waits until one of them is done, and cancels the others; results and exceptions are ignored."""
    tasks = {asyncio.ensure_future(awaitable) for awaitable in awaitables}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
