"""Where the Redis server is that a link uses: asked of Sentinel or of the cluster each time a connection is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from redis import asyncio as redis
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import RedisError, ResponseError

from gateway.redis_address import Host, RedisAddress

PATIENCE = 1.0
"""Seconds for each of the hosts that are asked."""
HEAD_START = 0.05
"""Seconds after which the next is asked, too."""


class Finder:
    """Finds the server for keys that begin with ``prefix``: in a cluster, whoever has their slot (``prefix`` has a hash
    tag)."""

    def __init__(self, address: RedisAddress, prefix: str) -> None:
        self.address = address
        self._slot = key_slot(prefix.encode())
        self._heard_of: tuple[Host, ...] = ()
        """Of a cluster's servers: those that the URL names may be gone by now."""

    async def find(self) -> Host:
        """Raises the library's ``ConnectionError``."""
        hosts = self.address.hosts
        if self.address.kind == "server":
            return hosts[0]
        if self.address.kind == "sentinel":
            return await _first(
                hosts, self._ask_sentinel, f"no Sentinel knows where '{self.address.master}' is"
            )
        hosts = tuple(dict.fromkeys((*self._heard_of, *hosts)))
        return await _first(
            hosts, self._ask_cluster, f"no server of the cluster says who has slot {self._slot}"
        )

    async def _ask_sentinel(self, host: Host) -> Host | None:
        """A Sentinel that was cut off from the others names who was the master before: the server itself is asked, too
        (redis.io/docs/latest/develop/reference/sentinel-clients, step 3)."""
        address = self.address
        found = await _ask(
            host, address, "SENTINEL", "get-master-addr-by-name", address.master, of=address.sentinel_options
        )
        if not found:
            return None
        place = (_text(found[0]), int(found[1]))
        try:
            role, *_ = await _ask(place, address, "ROLE")
        except ResponseError:  # this user may not ask
            return place
        if _text(role) != "master":
            raise NotConnected(f"a Sentinel names {place[0]}:{place[1]}, which is a replica")
        return place

    async def _ask_cluster(self, host: Host) -> Host | None:
        mine, others = None, []
        for first, last, *servers in await _ask(host, self.address, "CLUSTER", "SLOTS"):
            for number, server in enumerate(servers):
                name = _text(server[0])
                if name == "?":  # it does not know its own host name
                    continue
                place = (name or host[0], int(server[1]))
                others.append(place)
                if number == 0 and int(first) <= self._slot <= int(last):
                    mine = place
        if mine is not None:
            self._heard_of = tuple(dict.fromkeys(others))
        return mine


async def _ask(
    host: Host, address: RedisAddress, *command: str, of: Mapping[str, object] | None = None
) -> Any:
    """One connection for one question: connections are seldom made. ``of`` are its options, if not the server's."""
    options: dict[str, Any] = dict(address.options if of is None else of)
    options |= {
        "socket_timeout": PATIENCE,
        "socket_connect_timeout": PATIENCE,
        "retry": Retry(NoBackoff(), 0),
    }
    connection = (SSLConnection if address.tls else Connection)(host=host[0], port=host[1], **options)
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
        await connection.send_command(*command)
        return await connection.read_response()
    finally:
        await connection.disconnect(nowait=True)


async def _first(
    hosts: Iterable[Host], ask: Callable[[Host], Coroutine[Any, Any, Host | None]], otherwise: str
) -> Host:
    """What the first of ``hosts`` says that knows it. One that does not answer holds up the others for a moment."""
    tasks: list[asyncio.Task[Host | None]] = []
    asked: set[asyncio.Task[Host | None]] = set()
    waiting, why = list(hosts), ""
    try:
        while waiting or asked:
            if waiting:
                tasks.append(asyncio.get_running_loop().create_task(ask(waiting.pop(0))))
                asked.add(tasks[-1])
            done, asked = await asyncio.wait(
                asked, timeout=HEAD_START if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for one in done:
                error = one.exception()
                if error is None and (found := one.result()) is not None:
                    return found
                if error is not None and not isinstance(error, RedisError | OSError):
                    raise error
                why = f": {error}" if error is not None and str(error) else why
    finally:
        for one in asked:
            one.cancel()
        # Of all: one that failed in the moment in which another knew is looked at nowhere else.
        await asyncio.gather(*tasks, return_exceptions=True)
    raise NotConnected(otherwise + why)


def _text(field: Any) -> str:
    return field.decode() if isinstance(field, bytes) else str(field or "")


class Server:
    """Which server the connections of one pool are to: with ``only``, never two.

    A server that took over knows less than the one before, and who counts on it has to hear of that.
    """

    def __init__(self, *, only: bool) -> None:
        self._only = only
        self.run_id = ""
        """Of the server, from the first connection on; empty where it does not tell."""
        self.closed = False

    async def greet(self, connection: Connection) -> None:
        """Log in, and ask who it is. Raises ``ConnectionError`` where it is another than before."""
        if self.closed:
            raise NotConnected("the link was closed")
        try:
            await connection.on_connect()
            run_id = await _run_id(connection) if self._only else ""
        except (
            BaseException
        ):  # given up in the middle: its next user would read the answer to another's question
            await connection.disconnect(nowait=True)
            raise
        if self.run_id and run_id and run_id != self.run_id:
            raise NotConnected("another server answers than before")
        self.run_id = self.run_id or run_id


async def _run_id(connection: Connection) -> str:
    try:
        await connection.send_command("INFO", "server", check_health=False)
        told = _text(await connection.read_response())
    except ResponseError:  # this user may not ask
        return ""
    lines = (line.partition(":") for line in told.splitlines())
    return next((value.strip() for name, _, value in lines if name == "run_id"), "")


class _Found(Connection):
    """Asks anew where its server is each time it connects."""

    def __init__(self, *, finder: Finder, **options: Any) -> None:
        super().__init__(**options)
        self._finder = finder

    async def connect(self) -> None:
        if not self.is_connected:
            self.host, self.port = await self._finder.find()
        await super().connect()  # type: ignore[no-untyped-call]


class _FoundWithTls(_Found, SSLConnection):
    pass


def open_pool(
    finder: Finder, server: Server, *, connections: int, timeout: float
) -> redis.BlockingConnectionPool:
    """Of at most so many ``connections``; ``timeout`` is in seconds, for connecting and for each answer."""
    address = finder.address
    options: dict[str, Any] = dict(address.options)
    return redis.BlockingConnectionPool(
        connection_class=_FoundWithTls if address.tls else _Found,
        finder=finder,
        redis_connect_func=server.greet,
        max_connections=connections,
        timeout=None,  # requests that wait for a connection have their own time-outs
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 1),
        host=address.hosts[0][0],
        port=address.hosts[0][1],
        **options,
    )
