"""``/admin/api/live``: what goes on now, as server-sent events, one a second; and ``/admin/api/snapshot``, once.

All who watch at one worker share its samples: ten open pages cost as much as one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from pydantic import ConfigDict

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Told
from gateway.admin.site import Site
from gateway.admin.snapshot import merged
from gateway.errors import GatewayError, Overloaded
from gateway.server.cycle import CONNECTION_STATE, ConnectionState
from gateway.web.body import cancel_on_disconnect
from gateway.web.event_stream import EventStream
from gateway.web.operation import EVENTS, Operation

EVERY = 1.0
"""Seconds between two samples."""
MOST_WATCHERS = 100
"""At one worker."""


class Snapshot(Told):
    """Counters grow from the start of the workers; a rate is the difference of two snapshots."""

    model_config = ConfigDict(extra="allow", frozen=True)

    at: float
    """Unix time."""
    generation: int
    rejected: str | None = None
    """Why the policy's files as they are now are not in force."""
    workers: int
    counters: dict[str, dict[str, float]]
    """By metric, and by the values of its labels with tabs between them."""
    histograms: dict[str, dict[str, list[float]]]
    """``bounds`` of the buckets, and ``counts`` in each of them, with one more above the last bound."""
    backends: dict[str, dict[str, Any]]
    breakers: list[dict[str, Any]]
    """Those that are open, and for how many seconds."""
    disabled: dict[str, str]
    """The backends that are not in use, and why."""


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    sampler = Sampler(lambda: sample(site))

    async def once(request: Request) -> Snapshot:
        return Snapshot.model_validate(await sampler.latest())

    async def live(request: Request) -> None:
        stream = EventStream(
            request.send,
            lambda: [(b"cache-control", b"no-store")],
            heartbeat=b": waiting\n\n",
            every=10.0,
        )
        cancel_on_disconnect(request.scope)
        with stream:
            await stream.write(b"retry: 2000\n\n")
            async for one in sampler.samples():
                if _is_stopping(request) or not await _may_watch(site, request):
                    break  # a browser asks again, here or at another gateway, and is told why not
                await stream.write(b"event: snapshot\ndata: " + orjson.dumps(one) + b"\n\n")
            await stream.end(b"")

    return [
        (operation("GET", "/snapshot", "snapshot", "What goes on now", Snapshot), once),
        (
            operation(
                *("GET", "/live", "live", "What goes on now, once a second, as server-sent events", Snapshot),
                errors=(503,),
                others={EVENTS: None},
            ),
            live,
        ),
    ]


def _is_stopping(request: Request) -> bool:
    """A gateway that is stopped lets answers in flight finish, and this one would not."""
    connection: ConnectionState = request.scope[CONNECTION_STATE]
    return connection.stopping


async def _may_watch(site: Site, request: Request) -> bool:
    """Whether the caller would be let in now: keys are revoked, and sessions end, while a page is open."""
    runtime = site.current()
    authenticate = request.context.authenticate
    if authenticate is None or not runtime.policy.admin.enabled:
        return False
    try:
        await authenticate(request.scope, runtime)
    except GatewayError:
        return False
    return True


async def sample(site: Site) -> dict[str, Any]:
    found = merged(await site.peers.ask({"do": "snapshot"}))
    return {
        "at": round(time.time(), 3),
        "generation": site.generation(),
        "rejected": site.rejected(),
        "disabled": dict(site.current().readiness.disabled),
        **found,
    }


class Sampler:
    """Takes a sample a second while anybody watches."""

    def __init__(self, take: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._take = take
        self._watchers: set[asyncio.Queue[dict[str, Any]]] = set()
        self._task: asyncio.Task[None] | None = None
        self._last: dict[str, Any] | None = None
        self._taken = float("-inf")
        self._taking = asyncio.Lock()

    async def latest(self) -> dict[str, Any]:
        """Not older than half the time between two samples."""
        async with self._taking:
            if self._last is None or time.monotonic() - self._taken > EVERY / 2:
                self._last = await self._take()
                self._taken = time.monotonic()
            return self._last

    async def samples(self) -> Any:
        """Raises ``Overloaded`` where too many watch already."""
        if len(self._watchers) >= MOST_WATCHERS:
            raise Overloaded("Too many pages watch this gateway. Close some.", retry_after=5.0)
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(1)
        self._watchers.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield await self.latest()
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    async def _run(self) -> None:
        while self._watchers:
            one = await self.latest()
            for queue in self._watchers:
                if queue.empty():  # who reads slowly skips some
                    queue.put_nowait(one)
            await asyncio.sleep(EVERY)
