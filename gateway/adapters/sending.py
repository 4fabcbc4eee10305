"""Around what sends a call to a listed adapter: who answers that it has none is asked after the others from then on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from gateway.adapters.listed import ListedAdapter, ListedAdapters
from gateway.errors import NotFound, Rejected
from gateway.types import Call, Chunk, Chunks, Handler, WholeHandler


class Sending:
    """Nothing is loaded for it: servers have what they list."""

    def __init__(self, adapter: ListedAdapter, listed: ListedAdapters) -> None:
        self._adapter = adapter
        self._listed = listed

    def stream(self, send: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            server = self._begins(call)
            try:
                async with aclosing(send(call)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except Rejected as error:
                if error.status != 404:
                    raise
                raise self._missing(server) from error

        return handle

    def whole(self, send: WholeHandler) -> WholeHandler:
        async def handle(call: Call) -> Sequence[Chunk]:
            server = self._begins(call)
            try:
                return await send(call)
            except Rejected as error:
                if error.status != 404:
                    raise
                raise self._missing(server) from error

        return handle

    def _begins(self, call: Call) -> str:
        server = call.target.backend if call.target is not None else ""
        self._listed.sent(server, self._adapter.name)
        call.receipt.note("adapter", listed=self._adapter.name, backend=server)
        return server

    def _missing(self, server: str) -> NotFound:
        """What its caller is told, where no other candidate has it."""
        self._listed.lacks(server, self._adapter.name)
        return NotFound(
            f"'{server}' lists the adapter '{self._adapter.model}', and does not have it. Try again, or ask the "
            "operator.",
            param="model",
            code="adapter_not_there",
        )
