"""The sidecar's side of the socket: requests and their cancellation; it knows no models."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from gateway.sidecar.api import TENANT, SidecarBusy, SidecarError
from gateway.sidecar.protocol import (
    HELLO,
    MAX_FRAME,
    Frame,
    FrameReader,
    ProtocolError,
    encode,
    failure,
    greeted,
)

log = logging.getLogger(__name__)

Response = tuple[Mapping[str, Any], bytes]
Handler = Callable[[str, Mapping[str, Any], bytes], Awaitable[Response]]
"""Takes an operation, its arguments and its payload. Raises ``SidecarError``."""

_MAX_IN_FLIGHT = 4096
"""Requests of one connection."""


async def serve(path: Path, handler: Handler) -> asyncio.Server:
    """Listen at ``path``, for this user alone."""
    path.unlink(missing_ok=True)  # noqa: ASYNC240
    before = os.umask(0o077)
    try:
        return await asyncio.get_running_loop().create_unix_server(lambda: _Connection(handler), str(path))
    finally:
        os.umask(before)


class _Connection(asyncio.Protocol):
    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._frames = FrameReader()
        self._greeted = False
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(encode(HELLO))

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._take(frame)
        except ProtocolError as error:
            log.error("a gateway worker's connection is closed: %s", error)
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end()

    def _take(self, frame: Frame) -> None:
        header = frame.header
        if not self._greeted:
            greeted(header)
            self._greeted = True
        elif (cancelled := header.get("cancel")) is not None:
            if task := self._in_flight.get(cancelled):
                task.cancel()
        else:
            request_id, op = header.pop("id", None), header.pop("op", None)
            if not isinstance(request_id, int) or not isinstance(op, str) or request_id in self._in_flight:
                raise ProtocolError("a request without an id or an operation of its own")
            if len(self._in_flight) >= _MAX_IN_FLIGHT:
                self._reply(
                    request_id, failure(SidecarBusy(f"{_MAX_IN_FLIGHT} requests are in flight already"))
                )
                return
            self._in_flight[request_id] = asyncio.create_task(self._answer(request_id, op, frame))

    async def _answer(self, request_id: int, op: str, frame: Frame) -> None:
        TENANT.set(str(frame.header.pop("tenant", "")))  # in this task's context
        try:
            header, payload = await self._handler(op, frame.header, frame.payload)
            self._reply(request_id, header, payload)
        except SidecarError as error:
            self._reply(request_id, failure(error))
        except Exception as error:
            # Its message could quote the text, so only its type and location are logged.
            frame_of = error.__traceback__
            while frame_of is not None and frame_of.tb_next is not None:
                frame_of = frame_of.tb_next
            where = f"{frame_of.tb_frame.f_code.co_filename}:{frame_of.tb_lineno}" if frame_of else "unknown"
            log.error("'%s' failed: %s at %s", op, type(error).__name__, where)
            self._reply(request_id, failure(SidecarError(f"'{op}' failed ({type(error).__name__})")))
        finally:
            self._in_flight.pop(request_id, None)

    def _reply(self, request_id: int, header: Mapping[str, Any], payload: bytes = b"") -> None:
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size() > 2 * MAX_FRAME:
            log.error("a gateway worker does not read its responses; its connection is closed")
            self._end()
            return
        self._transport.write(encode({"id": request_id, **header}, payload))

    def _end(self) -> None:
        if self._transport is not None:
            with suppress(OSError):
                self._transport.abort()
        for task in self._in_flight.values():
            task.cancel()
