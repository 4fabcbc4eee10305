"""The engine process as the HTTP process has it: started, spoken to, watched, ended."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, Self, TypeVar, cast

from engine import channel
from engine.begun_process import BegunProcess
from engine.config import EngineConfig
from engine.errors import EngineDied, EngineError, StartupError
from engine.messages import Failed, Start

_EXIT_TIMEOUT = 2.0
"""Seconds that the engine process gets to leave by itself when it is closed."""

ReadyT = TypeVar("ReadyT")


class EngineProcess(asyncio.Protocol, Generic[ReadyT]):
    """Start it with ``start``; ``ready`` is set once the model is loaded."""

    def __init__(self, process: BegunProcess) -> None:
        self._process = process
        self._decoder = channel.MessageDecoder()
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[ReadyT] = asyncio.get_running_loop().create_future()
        # After a shutdown during the load nobody awaits the result.
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._closing: EngineError | None = None
        self.asleep = 0
        """The level of sleep; 0: awake."""
        self.died = asyncio.Event()
        """Set when the engine process has exited without having been asked to."""

    @classmethod
    async def start(cls, config: EngineConfig, begun: BegunProcess | None = None) -> Self:
        """``begun``: the process; ``None``: it begins now."""
        process = begun or BegunProcess()
        client = cls(process)
        await asyncio.get_running_loop().create_unix_connection(lambda: client, sock=process.socket)
        client.send(Start(config))
        return client

    async def ready(self) -> ReadyT:
        """Waits until the model is loaded. Raises ``StartupError`` if it does not load."""
        return await asyncio.shield(self._ready)

    @property
    def pid(self) -> int:
        return self._process.pid

    def take(self, message: Any) -> None:
        """A message has come, other than that the model is not loaded."""
        raise NotImplementedError

    def end_requests(self, error: EngineError) -> None:
        """Ends every open request with ``error``."""
        raise NotImplementedError

    def fail_all(self, error: EngineError) -> None:
        """Ends every request with ``error``, those submitted later included."""
        self._closing = error
        self.end_requests(error)

    def kill(self) -> None:
        """Ends an engine process that does not respond: all requests fail, and ``died`` is set."""
        self._process.kill()

    async def close(self) -> None:
        """Ends the engine process, by force if necessary."""
        if self._closing is None:
            self.fail_all(EngineDied("The engine is shutting down."))
        if self._transport is not None:
            self._transport.close()
        # While it loads a model it does not read its socket, and there is nothing to lose.
        timeout = _EXIT_TIMEOUT if self._ready.done() else 0.0
        try:
            await asyncio.wait_for(self._process.wait(), timeout)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def send(self, message: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(channel.encode(message))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            if isinstance(message, Failed):
                self._ready.set_exception(StartupError(message.message))
            else:
                self.take(message)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ready.done():
            self._ready.set_exception(StartupError("The engine process died while it loaded the model."))
        if self._closing is None:
            self.fail_all(EngineDied("The engine process died; it is being restarted."))
            self.died.set()
