"""Requests that wait for a server that is not running yet, as an autoscaler takes the last one away."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Protocol, cast

import httpx

from gateway.errors import GatewayError, UpstreamUnavailable
from gateway.policy.schema import Target
from gateway.types import AnswersWhole, Backend, Call, Chunk, Chunks, PassesOn

PAUSE = 1.0
"""Seconds between two tries of a request that waits: each is a connection that is refused."""
TELL_EVERY = 5.0


ReplicaOf = Callable[[str], AbstractContextManager[Backend | None]]
"""A replica of the backend by this name that is in use now, kept open while it is needed; None where there is none."""


class Waited(Backend, AnswersWhole, PassesOn, Protocol):
    """What may be waited for: a backend that has all of these."""


class ColdStartBackend:
    """``backend``, whose server may be away for ``patience`` seconds: nobody listens, and a request was not sent.

    Those that wait are in flight, so an autoscaler that reads ``tollgate_backend_requests_in_flight`` sees them. A
    stream's client gets comments with its position, among those of this worker.
    """

    def __init__(
        self, backend: Waited, patience: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = backend.name
        self._backend = backend
        self._patience = patience
        self._clock = clock
        self._waiting: dict[object, None] = {}
        """In the order in which they came."""

    def stream(self, call: Call, target: Target) -> Chunks:
        return self._awaited(call, lambda: self._backend.stream(call, target))

    def pass_on(self, call: Call, target: Target) -> Chunks:
        return self._awaited(call, lambda: self._backend.pass_on(call, target))

    async def whole(self, call: Call, target: Target) -> Sequence[Chunk]:
        wait = _Wait(self, call)
        try:
            while True:
                try:
                    return await self._backend.whole(call, target)
                except GatewayError as error:
                    wait.go_on(error)
                await asyncio.sleep(PAUSE)
        finally:
            wait.end()

    async def probe(self) -> None:
        """One that is away can serve, as it will be started: so a gateway that has no other is ready."""
        try:
            await self._backend.probe()
        except GatewayError as error:
            if not _is_away(error):
                raise

    async def aclose(self) -> None:
        await self._backend.aclose()

    async def _awaited(self, call: Call, ask: Callable[[], Chunks]) -> Chunks:
        wait = _Wait(self, call)
        told = -TELL_EVERY
        try:
            while True:
                try:
                    async with aclosing(ask()) as chunks:
                        async for chunk in chunks:
                            wait.end()
                            yield chunk
                    return
                except GatewayError as error:
                    wait.go_on(error)
                if call.request.stream and self._clock() - told >= TELL_EVERY:
                    told = self._clock()
                    yield Chunk(comment=f"starting position={wait.position}")
                await asyncio.sleep(PAUSE)
        finally:
            wait.end()


class FirstReplica:
    """Until there is a replica it fails as a server does at which nobody listens, which ``ColdStartBackend`` waits for.

    Requests that are here keep the routes with which they began, which have no replica: so the one that is asked is
    another generation's. What is reported of them has this backend's name.
    """

    def __init__(self, name: str, replica_of: ReplicaOf) -> None:
        self.name = name
        self._replica_of = replica_of

    async def stream(self, call: Call, target: Target) -> Chunks:
        with self._replica_of(self.name) as backend:
            async with aclosing(self._there(backend).stream(call, target)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def pass_on(self, call: Call, target: Target) -> Chunks:
        with self._replica_of(self.name) as backend:
            async with aclosing(self._there(backend).pass_on(call, target)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def whole(self, call: Call, target: Target) -> Sequence[Chunk]:
        with self._replica_of(self.name) as backend:
            return await self._there(backend).whole(call, target)

    async def probe(self) -> None:
        with self._replica_of(self.name) as backend:
            await self._there(backend).probe()

    async def aclose(self) -> None:
        """Replicas are closed by the generation that has them."""

    def _there(self, backend: Backend | None) -> Waited:
        if backend is None:
            nobody = httpx.ConnectError("it has no replica")
            raise UpstreamUnavailable(f"Backend '{self.name}' has no replica now.") from nobody
        return cast(Waited, backend)  # kinds with replicas have all of it


class _Wait:
    """Of one request."""

    def __init__(self, backend: ColdStartBackend, call: Call) -> None:
        self._waiting, self._clock = backend._waiting, backend._clock
        self._until = backend._clock() + backend._patience
        self._deadline = call.deadline
        self._answered = False

    @property
    def position(self) -> int:
        return [*self._waiting].index(self) + 1

    def go_on(self, error: GatewayError) -> None:
        """Wait on after ``error``. Raises it where that is no use."""
        late = self._deadline is not None and time.perf_counter() + PAUSE >= self._deadline
        if self._answered or late or not _is_away(error) or self._clock() + PAUSE >= self._until:
            raise error
        self._waiting[self] = None

    def end(self) -> None:
        """It was answered, or waits no longer."""
        self._answered = True
        self._waiting.pop(self, None)


def _is_away(error: GatewayError) -> bool:
    """Whether nobody listened: of all errors the one after which a request was surely not sent. Who has a certificate
    that cannot be trusted does listen."""
    if not isinstance(error, UpstreamUnavailable) or not isinstance(
        error.__cause__, httpx.ConnectError | httpx.ConnectTimeout
    ):
        return False
    cause: BaseException | None = error.__cause__
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return False
        cause = cause.__cause__ or cause.__context__
    return True
