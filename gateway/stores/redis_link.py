"""A link to a Redis server: time-outs, whether it is down, and how it recovers. Every use of Redis goes through one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from gateway.redis_address import RedisAddress
from gateway.stores.outage_log import OutageLog
from gateway.stores.store import StoreDown

if TYPE_CHECKING:
    from redis import asyncio as redis
    from redis.asyncio.client import Pipeline

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_EVERY = 0.25
"""Seconds between attempts to reach a server that is down."""
MOST_BETWEEN = 1.0
"""Seconds between attempts in the end, where another server is to take over: that takes seconds, and a cluster's many
links would keep a worker busy."""
SECONDS_TO_TELL = 5.0
"""For which another reason than the first has to keep a server away before the log has it: a failover has several."""
CONNECTIONS = 16
"""At most: with hundreds at once a server would be accepting connections rather than answering."""
SECONDS_TO_BEGIN = 2.0
"""For the first answer of all, of a cluster or where Sentinel is asked: a process that starts makes dozens of
connections at once."""
SOCKET_TIMEOUT = 10.0
"""Seconds, for the client library, which would count this process's own lag against the server; requests have shorter
time-outs of their own."""


class RedisLink:
    """``url`` as for ``RedisAddress``: of a cluster the link uses one server, which has the slot of ``prefix``.
    Connects at the first request.

    After a failed request the server counts as down: requests then fail at once, while the link probes the server in
    the background, with new connections. Both changes of state are logged, by ``name`` or the log that all links of
    one use share, and another reason that lasts.

    ``one_server``: where another server answers than before the link first goes down, so that ``recover`` hears of it.

    ``on_down`` runs when the server goes down. ``recover`` runs as the probe, with ``ask(…, probing=True)``, and raises
    if the server cannot be used yet; the default writes a key, as a server may be full or read-only. ``on_up`` runs
    once the server is up again.
    """

    def __init__(
        self,
        url: str,
        name: str | OutageLog,
        *,
        prefix: str = "tollgate:",
        one_server: bool = False,
        on_down: Callable[[Exception], object] | None = None,
        recover: Callable[[], Awaitable[object]] | None = None,
        on_up: Callable[[], object] | None = None,
    ) -> None:
        # Some 120 modules, OpenTelemetry's among them, which a policy that names no server does without.
        from redis import asyncio as redis
        from redis.exceptions import MovedError, RedisError

        from gateway.stores.redis_finder import Finder, Server, open_pool

        self._failures = (RedisError, OSError)  # TimeoutError is an OSError
        address = RedisAddress.parse(url)
        finder = Finder(address, prefix)
        self._finds = address.kind != "server"
        self._wrong_kind: tuple[type[Exception], ...] = () if self._finds else (MovedError,)
        self._to_begin = SECONDS_TO_BEGIN if self._finds else 0.0

        def connect() -> tuple[redis.Redis, Server]:
            server = Server(only=one_server)
            pool = open_pool(finder, server, connections=CONNECTIONS, timeout=SOCKET_TIMEOUT)
            return redis.Redis.from_pool(pool), server

        self._connect = connect
        self.redis, self._server = connect()
        self.down = False
        self.closed = False
        self._told = OutageLog(name) if isinstance(name, str) else name
        self.prefix = prefix
        self._on_down = on_down
        self._recover = recover or self.write_probe
        self._on_up = on_up
        self._probing: asyncio.Task[None] | None = None

    @property
    def run_id(self) -> str:
        """With ``one_server``, of that server; empty before it is connected, and where it does not tell."""
        return self._server.run_id

    async def ask(
        self, request: Callable[[redis.Redis], Awaitable[T]], seconds: float, *, probing: bool = False
    ) -> T:
        """The answer to ``request`` within ``seconds``. Raises ``StoreDown``.

        ``probing``: ask a server that counts as down, and do not change its state.
        """
        if self.down and not probing:
            raise StoreDown("Redis did not answer when it was last asked.")
        try:
            async with patience(max(seconds, self._to_begin)):
                answer = await request(self.redis)
            self._to_begin = 0.0
            return answer
        except self._failures as error:
            down = StoreDown(f"Redis did not answer: {self._words(error)}")
            if not probing:
                self.fail(down)
            raise down from error

    def _words(self, error: Exception) -> str:
        if isinstance(error, self._wrong_kind):
            return "it is part of a cluster: write 'redis+cluster://…' (or 'rediss+cluster://…') for its URL"
        return str(error) or "it is too slow"

    async def pipeline(
        self, fill: Callable[[Pipeline], object], seconds: float, *, probing: bool = False
    ) -> list[object]:
        """The answers to all commands that ``fill`` adds, in one round trip. Raises ``StoreDown`` as ``ask`` does."""

        async def request(client: redis.Redis) -> list[object]:
            async with client.pipeline(transaction=False) as pipeline:
                fill(pipeline)
                return list(await pipeline.execute())

        return await self.ask(request, seconds, probing=probing)

    def fail(self, error: Exception, *, probe_in: float | None = None) -> None:
        """Count the server as down, and probe it from ``probe_in`` seconds on."""
        if self.down or self.closed:
            return
        self.down = True
        self._told.went(str(error))
        if self._on_down is not None:
            self._on_down(error)
        first = PROBE_EVERY if probe_in is None else probe_in
        self._probing = asyncio.get_running_loop().create_task(self._probe(first, str(error)))

    async def aclose(self) -> None:
        was_away = self.down and not self.closed
        self.closed = self.down = True
        if was_away:
            self._told.left()
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        await self._disconnect()

    async def _disconnect(self) -> None:
        self._server.closed = True
        await self.redis.aclose()

    async def _probe(self, wait: float, told: str) -> None:
        """``told`` is why the server is away. What keeps it so may be another thing by then: a password, say, after a
        restart."""
        clock = asyncio.get_running_loop().time
        reason, since = told, clock()
        while not self.closed:  # the client library swallows a cancellation while it connects
            await asyncio.sleep(wait)
            wait = min(MOST_BETWEEN, 1.5 * max(wait, PROBE_EVERY)) if self._finds else PROBE_EVERY
            await self._disconnect()
            self.redis, self._server = self._connect()
            try:
                await self._recover()
            except (StoreDown, *self._failures) as error:
                if str(error) != reason:
                    reason, since = str(error), clock()
                elif reason != told and clock() - since >= SECONDS_TO_TELL:
                    self._told.lasts(reason)
                    told = reason
                continue
            except Exception:
                log.exception("a bug keeps Redis from being used again")
                continue
            break
        if self.closed:
            return
        self.down = False
        self._told.came_back()
        if self._on_up is not None:
            self._on_up()

    async def write_probe(self) -> None:
        """Raises ``StoreDown`` where the server does not take a key."""
        await self.ask(
            lambda client: client.set(f"{self.prefix}probe", b"", px=1000), PROBE_EVERY, probing=True
        )


STEPS = 5


@asynccontextmanager
async def patience(seconds: float) -> AsyncIterator[None]:
    """``asyncio.timeout``, by a clock that stops while the loop is blocked. Raises ``TimeoutError``.

    The time is counted in steps, each of which starts in a new iteration of the loop: after a loop was blocked, or a
    process got no processor, only one step has passed, and the answer that has arrived meanwhile is read.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def step(left: int) -> None:
        nonlocal timer
        if left:
            timer = loop.call_later(seconds / STEPS, step, left - 1)
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        step(STEPS)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
