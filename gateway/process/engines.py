"""The launched engines: which run, and how one takes another's place.

The successor of an engine that is to listen where that one does starts beside it, on a free port. When it has loaded
and has proven that it works, it takes over the port, and the one before finishes what it has and ends. Until then that
one serves, however often the successor fails: it is started again and again, with growing pauses, as any child is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from gateway.backends.launcher import Launch
from gateway.children.child import Child

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.1
"""Seconds."""
_PATIENCE = 10.0
"""Seconds for one answer of an engine that is asked whether it works."""

MakeChild = Callable[[str, Launch, tuple[str, ...], Callable[[], str | None]], Child]
"""Takes the backend's name, its launch, the command, and what tells an obstacle to its start."""
Objection = Callable[[Launch, str], Awaitable[str | None]]
"""Takes a successor's launch and its URL. Why it should not take over; None: it may."""


@dataclass(frozen=True, slots=True)
class _Swap:
    launch: Launch
    task: asyncio.Task[None]


class Engines:
    """``grace`` is how long one may take to end, in seconds."""

    def __init__(self, make: MakeChild, grace: float, objection: Objection) -> None:
        self.running: dict[str, Child] = {}
        """Those that serve, by backend."""
        self._make = make
        self._grace = grace
        self._objection = objection
        self._refused: dict[str, Launch] = {}
        """Successors to which there was an objection: they are not tried again until they are edited."""
        self._launched: dict[str, Launch] = {}
        self._swaps: dict[str, _Swap] = {}
        self._beside: set[Child] = set()
        """Successors, and those that finish what they have."""
        self._retiring: set[asyncio.Task[None]] = set()

    async def run(self, wanted: Mapping[str, Launch]) -> None:
        """Have exactly these; one whose command is unchanged keeps running. Successors take over some time later."""
        await asyncio.gather(*(self._abandon(name) for name in self._overtaken(wanted)))
        self._refused = {
            name: launch for name, launch in self._refused.items() if _is_as(wanted.get(name), launch)
        }
        gone = [name for name, launch in self._launched.items() if wanted.get(name) != launch]
        swapped = [name for name in gone if name in wanted and wanted[name].may_replace(self._launched[name])]
        # All stops come before any start: a new engine may need the port of an old one.
        await asyncio.gather(*(self._stop(name) for name in gone if name not in swapped))
        for name, launch in wanted.items():
            if name not in self._launched:
                engine = self._make(name, launch, launch.argv, launch.obstacle)
                self.running[name], self._launched[name] = engine, launch
                engine.start()
            elif name in swapped and name not in self._swaps and name not in self._refused:
                task = asyncio.create_task(self._swap(name, launch), name=f"swap of engine {name}")
                self._swaps[name] = _Swap(launch, task)

    async def end(self) -> None:
        """Stop all of them, and wait for those that finish what they have."""
        await self.run({})
        await asyncio.gather(*self._retiring)

    def kill(self) -> None:
        for swap in self._swaps.values():
            swap.task.cancel()
        for child in (*self.running.values(), *self._beside):
            child.kill()

    def _overtaken(self, wanted: Mapping[str, Launch]) -> list[str]:
        return [name for name, swap in self._swaps.items() if wanted.get(name) != swap.launch]

    async def _abandon(self, name: str) -> None:
        task = self._swaps[name].task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._swaps.pop(name, None)

    async def _stop(self, name: str) -> None:
        engine = self.running[name]
        log.info("stopping %s", engine.name)
        await engine.stop(self._grace)
        del self.running[name], self._launched[name]

    async def _swap(self, name: str, launch: Launch) -> None:
        before = self.running[name]
        host, port = launch.address or ("127.0.0.1", 0)
        try:
            standby = await asyncio.to_thread(_free_port, host)
        except OSError as error:
            log.error(
                "%s stays as it was: there is no port for its successor (%s)",
                before.name,
                error.strerror or error,
            )
            del self._swaps[name]  # tried again at the next edit
            return
        successor = self._make(name, launch, launch.at_standby(standby), lambda: None)
        self._beside.add(successor)
        log.info(
            "%s goes on serving while its successor starts beside it; 'stop_first: true' ends it before that, where "
            "memory is short",
            before.name,
        )
        successor.start()
        try:
            refused = await self._taken_over(successor, launch, host, standby)
        except asyncio.CancelledError:
            await self._retire(successor)
            raise
        if refused is not None:
            log.error("%s stays as it was: its successor fails its golden set: %s", before.name, refused)
            self._refused[name] = launch
            del self._swaps[name]
            await self._retire(successor)
            return
        successor.become(launch.argv, launch.obstacle)
        self._beside.discard(successor)
        self._beside.add(before)
        self.running[name], self._launched[name] = successor, launch
        log.info("%s has been replaced on port %d; the one before finishes what it has", before.name, port)
        del self._swaps[name]
        retiring = asyncio.create_task(self._retire(before), name=f"end of {before.name}")
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)

    async def _retire(self, engine: Child) -> None:
        await engine.stop(self._grace)
        self._beside.discard(engine)

    async def _taken_over(self, successor: Child, launch: Launch, host: str, standby: int) -> str | None:
        """Wait until it works, and then until it has the port; or why it is not to have it."""
        told, url = "", f"http://[{host}]:{standby}" if ":" in host else f"http://{host}:{standby}"
        while True:
            deaths = successor.deaths
            if deaths and (why := " ".join([*successor.last_lines][-1:])) and why != told:
                told = why
                log.warning("%s stays as it was, as its successor does not start: %s", successor.name, why)
            if await healthy(host, standby):
                objection = await self._objection(launch, url)
                if successor.deaths > deaths or (pid := successor.pid) is None:
                    continue
                if objection is not None:
                    return objection
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
                while successor.deaths == deaths:
                    if not await _listens(host, standby) and successor.deaths == deaths:
                        return None
                    await asyncio.sleep(_LOOK_EVERY)
            await asyncio.sleep(_LOOK_EVERY)


def _is_as(wanted: Launch | None, launch: Launch) -> bool:
    return wanted == launch and wanted.golden == launch.golden


async def healthy(host: str, port: int) -> bool:
    """Whether the engine has done a step: ``/health`` proves it by one."""
    with suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
                return (await reader.readline()).split()[1:2] == [b"200"]
            finally:
                writer.close()
    return False


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


def _free_port(host: str) -> int:
    family, kind, protocol, _, (address, *_) = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
