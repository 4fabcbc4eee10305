"""The life of the HTTP process: bind, start the engine process, serve, drain, exit."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import uvicorn
import uvloop

from engine.begun_process import BegunProcess
from engine.config import ServerConfig
from engine.errors import ShuttingDown
from engine.extras import install_command
from engine.server.listening import KEEP_ALIVE, Server, bind, bind_first, bind_unix, first, url_of
from engine.server.protocol import Protocol
from engine.server.service import start
from engine.server.tracing import Tracer
from engine.server.watchdog import end_when_stuck

log = logging.getLogger("engine.server")

_FAREWELL = 2.0
"""Seconds that connections get to read their error when the engine process has died or the drain is over."""


def serve(config: ServerConfig, announce: Callable[[str], None], begun: BegunProcess | None = None) -> int:
    """Runs until a signal, and returns the exit status: 0, or 1 if the engine process died.

    ``announce`` is called with the server's URL when it is ready. ``begun``: the engine process, if it has.
    Raises ``StartupError``.
    """
    began = time.monotonic()
    with (
        _listener(config) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_run(config, listener, announce, began, begun))


async def _run(
    config: ServerConfig,
    listener: socket.socket,
    announce: Callable[[str], None],
    began: float,
    begun: BegunProcess | None,
) -> int:
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if config.leave_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _leave_at_end, loop, stop)
    promoted = asyncio.Event()
    if config.standby_port is not None:
        loop.add_signal_handler(signal.SIGUSR1, promoted.set)

    service = await start(config, _tracer, begun)
    client = service.client
    watching: asyncio.Task[None] | None = None
    try:
        await service.prepare()
        await first(client.ready(), stop.wait())
        if stop.is_set():
            return 0
        app = await service.app()
        server = Server(
            uvicorn.Config(
                app,
                http=cast(Any, partial(Protocol, write_timeout=config.write_timeout)),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await first(server.listening.wait(), asyncio.wait({serving}))
        if serving.done():
            serving.result()
            return 1
        url = url_of(listener)
        announce(url)
        log.info("ready on %s in %.1f s: %s", url, time.monotonic() - began, config.served_model_name)

        watching = asyncio.create_task(end_when_stuck(client, config.step_timeout))
        if config.standby_port is not None:
            await first(promoted.wait(), stop.wait(), client.died.wait())
            if promoted.is_set() and not stop.is_set():
                await server.take_over(bind(config.host, config.port, shared=True))
                log.info("took over %s:%d", config.host, config.port)
        await first(stop.wait(), client.died.wait())
        server.should_exit = True
        if stop.is_set() and not client.died.is_set():
            if client.open_requests:
                log.info("draining %d requests (Ctrl-C again drops them)", client.open_requests)
            drained = asyncio.wait({serving}, timeout=config.drain_timeout)
            await first(drained, hurry.wait(), client.died.wait())
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


def _listener(config: ServerConfig) -> socket.socket:
    if config.uds is not None:
        return bind_unix(config.uds)
    return bind_first(config.host, config.port, shared=config.share_port, standby=config.standby_port)


def _leave_at_end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """What comes by standard input is of no interest, its end is."""
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()


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
