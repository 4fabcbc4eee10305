"""uvicorn's server in a worker with a listening socket of its own, beside those of other workers.

The sockets of all workers listen on one port (``SO_REUSEPORT``), over which the kernel spreads connections evenly. A
worker that hangs or has died would keep those of its own socket waiting: the others accept them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn


class WorkerServer(uvicorn.Server):
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
