"""A gateway worker's side of the socket: one connection, many requests in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from gateway.backoff import Backoff
from gateway.findings import Finding
from gateway.sidecar.api import TENANT, Hit, LookupResult, Scored, SidecarBusy, SidecarDown, SidecarError
from gateway.sidecar.protocol import (
    HELLO,
    MAX_FRAME,
    Frame,
    FrameReader,
    ProtocolError,
    encode,
    greeted,
    raise_failure,
)

_BACKOFF = Backoff(0.05, most=0.5)
_CONNECT_TIMEOUT = 1.0


class SidecarOperations:
    """The sidecar's operations as requests and responses; subclasses implement the transport."""

    async def _ask(self, op: str, arguments: Mapping[str, Any], payload: bytes = b"") -> Frame:
        raise NotImplementedError

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        if not texts:
            return []
        payload = (await self._ask("embed", {"texts": list(texts)})).payload
        size, left = divmod(len(payload), len(texts))
        if left or not size:
            raise SidecarError("the sidecar answered with embeddings of different lengths")
        return [payload[at : at + size] for at in range(0, len(payload), size)]

    async def score(self, head: str, texts: Sequence[str]) -> list[list[Scored]]:
        return _scored(await self._ask("score", {"head": head, "texts": list(texts)}))

    async def classify(self, model: str, texts: Sequence[str]) -> list[list[Scored]]:
        return _scored(await self._ask("classify", {"model": model, "texts": list(texts)}))

    async def entities(
        self, texts: Sequence[str], *, language: str, entities: Sequence[str]
    ) -> list[list[Finding]]:
        arguments = {"texts": list(texts), "language": language, "entities": list(entities)}
        found = (await self._ask("entities", arguments)).header["found"]
        return [[Finding(*finding) for finding in of_text] for of_text in found]

    async def look_up(
        self, partition: str, question: str, *, budget: float, floor: float, projects: bool = False
    ) -> LookupResult:
        asked = {"partition": partition, "question": question, "budget": budget, "floor": floor}
        header, payload = await self._ask("look_up", {**asked, "projects": True} if projects else asked)
        hit = None if header["hit"] is None else Hit(payload, *header["hit"])
        projection = tuple(header["projection"]) if projects else ()
        return LookupResult(hit, header["reason"], header["similarity"], projection)

    async def remember(self, partition: str, question: str, payload: bytes, *, key: str, ttl: float) -> None:
        arguments = {"partition": partition, "question": question, "key": key, "ttl": ttl}
        await self._ask("remember", arguments, payload)

    async def forget(self, partition: str, key: str) -> None:
        await self._ask("forget", {"partition": partition, "key": key})

    async def status(self) -> Mapping[str, Any]:
        header, _ = await self._ask("status", {})
        return {name: value for name, value in header.items() if name != "id"}


def _scored(frame: Frame) -> list[list[Scored]]:
    return [[Scored(*window) for window in windows] for windows in frame.header["scores"]]


class NoSidecar(SidecarOperations):
    """For a gateway without a sidecar: every operation fails, and says what to do about it."""

    async def _ask(self, op: str, arguments: Mapping[str, Any], payload: bytes = b"") -> Frame:
        raise SidecarDown(
            "this gateway runs without a sidecar; start it with 'tollgate serve', which brings one"
        )

    async def aclose(self) -> None:
        pass


class SidecarClient(SidecarOperations):
    """Connects on the first request, and reconnects on the first request after the connection broke.

    Nothing is retried: requests in flight when the connection breaks fail with ``SidecarDown``. After a failed
    attempt to connect, requests fail at once for a backoff that grows from 50 to 500 ms.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._closed = False

    async def aclose(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._connection is not None:
            self._connection.end(SidecarDown("the gateway is shutting down"))
            await self._connection.gone.wait()

    async def _ask(self, op: str, arguments: Mapping[str, Any], payload: bytes = b"") -> Frame:
        connection = self._connection
        if connection is None or connection.ended:
            connection = await self._connect()
        return await connection.ask(op, arguments, payload)

    async def _connect(self) -> _Connection:
        if self._closed:
            raise SidecarDown("the gateway is shutting down")
        if self._connecting is None:
            if self._clock() < self._not_before:
                raise SidecarDown(
                    f"the sidecar cannot be reached at {self._path}; it is tried again in a moment"
                )
            self._connecting = asyncio.create_task(self._open(), name="connect to the sidecar")
            self._connecting.add_done_callback(self._opened)
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled():  # by aclose; the caller was not cancelled
                raise SidecarDown("the gateway is shutting down") from None
            raise

    async def _open(self) -> _Connection:
        connection = _Connection()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                await loop.create_unix_connection(lambda: connection, str(self._path))
                await connection.greeted
        except (OSError, TimeoutError, SidecarDown) as error:
            connection.end(SidecarDown("the connection was given up"))
            self._failures += 1
            self._not_before = self._clock() + _BACKOFF.after(self._failures)
            why = str(error) or "it does not answer"
            raise SidecarDown(f"the sidecar cannot be reached at {self._path}: {why}") from None
        except asyncio.CancelledError:
            connection.end(SidecarDown("the gateway is shutting down"))
            raise
        self._failures = 0
        self._connection = connection
        return connection

    def _opened(self, task: asyncio.Task[_Connection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # retrieved, as nobody may be waiting any more


class _Connection(asyncio.Protocol):
    """One connection, from its greeting to its end."""

    def __init__(self) -> None:
        self.ended = False
        self.gone = asyncio.Event()
        """Set when its socket is closed."""
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader()
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._last_id = 0

    async def ask(self, op: str, arguments: Mapping[str, Any], payload: bytes) -> Frame:
        transport = self._transport
        if self.ended or transport is None:
            raise SidecarDown("the sidecar went away")
        self._last_id = request_id = self._last_id + 1
        frame = encode({"id": request_id, "op": op, "tenant": TENANT.get(), **arguments}, payload)
        if transport.get_write_buffer_size() + len(frame) > 2 * MAX_FRAME:
            raise SidecarBusy("the sidecar does not read its requests")
        answered: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answered
        transport.write(frame)
        try:
            return await answered
        except asyncio.CancelledError:
            if not self.ended:
                transport.write(encode({"cancel": request_id}))
            raise
        finally:
            self._waiting.pop(request_id, None)

    def end(self, error: SidecarError) -> None:
        """Requests in flight fail with ``error``."""
        self.ended = True
        if self._transport is not None:
            self._transport.abort()
        if not self.greeted.done():
            self.greeted.set_exception(error)
            with suppress(SidecarError):
                self.greeted.exception()
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            if not answered.done():
                answered.set_exception(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(encode(HELLO))

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._take(frame)
        except ProtocolError as error:
            self.end(SidecarDown(str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(SidecarDown("the sidecar went away"))
        self.gone.set()

    def _take(self, frame: Frame) -> None:
        if not self.greeted.done():
            greeted(frame.header)
            self.greeted.set_result(None)
            return
        answered = self._waiting.get(frame.header.get("id", 0))
        if answered is None or answered.done():  # cancelled meanwhile
            return
        try:
            raise_failure(frame.header)
        except SidecarError as error:
            answered.set_exception(error)
            if isinstance(
                error, SidecarDown
            ):  # it is shutting down; the next request may reach its successor
                self.end(error)
        else:
            answered.set_result(frame)
