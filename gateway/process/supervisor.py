"""``tollgate serve``: the process that owns the listening socket and keeps workers, engines and the sidecar running.

It serves no request itself. Shutdown goes from the front to the back: readiness is taken back while the port stays
open for whoever has not noticed yet, then nothing new is accepted, the workers finish what they have, and the engines
and the sidecar are stopped.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.backends.launcher import Launch, launches
from gateway.children.child import Child, OnLine
from gateway.children.environment import INSTALLERS, inherited
from gateway.children.watchdog import PULSE_FD, Watchdog
from gateway.identity.control import Control, make_room
from gateway.policy.alone import not_shared
from gateway.policy.key_store import ISSUED
from gateway.policy.loader import Loaded
from gateway.policy.reload import PolicyWatcher
from gateway.settings import SOCKET_FD, Settings
from gateway.sidecar.api import SidecarError
from gateway.sidecar.client import SidecarClient
from gateway.sidecar.config import CONFIG, SidecarConfig
from gateway.sidecar.requirements import needs_sidecar, sidecar_config

log = logging.getLogger(__name__)

_SLACK = 5.0
"""Seconds more than the drain timeout that a child gets before it is killed."""
_LOADING = 60.0
"""Seconds for which a sidecar goes on in the place of one that loads its models."""
_SAME_SIGNAL = 0.2
"""Seconds in which a second signal is an echo: some wrappers pass on what the terminal has sent already."""


class CannotListen(Exception):
    """The address cannot be had; the message says what to do about it."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ``CannotListen``."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CannotListen(
            f"'{host}' is no address of this machine ({error}). Try --host 127.0.0.1"
        ) from None
    family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise CannotListen(_refused(error, host, port)) from None
    return listener


class Supervisor:
    """A changing set of children, started and stopped in the right order."""

    def __init__(
        self, *, env: Mapping[str, str], on_line: OnLine, drain_timeout: float, watchdog: float = 0.0
    ) -> None:
        """``watchdog``: seconds of processor time after which a worker whose loop stands still is replaced; 0: off."""
        self.workers: list[Child] = []
        self.engines: dict[str, Child] = {}
        self.sidecar: Child | None = None
        self._sidecar_config: SidecarConfig | None = None
        self._sidecars = 0
        """How many there were."""
        self._leaving: Child | None = None
        """One that answers until another has loaded its models."""
        self._env = dict(env)
        self._on_line = on_line
        self._grace = drain_timeout + _SLACK
        self._launched: dict[str, Launch] = {}
        self._closing = False
        self._changing = asyncio.Lock()
        self._patience = watchdog
        self._watching: list[asyncio.Task[None]] = []
        self._pulses: list[int] = []

    def start_worker(
        self, name: str, argv: Iterable[str], *, env: Mapping[str, str], pass_fds: Iterable[int]
    ) -> None:
        reading, writing = os.pipe()
        self._pulses += (reading, writing)
        worker = Child(
            name,
            tuple(argv),
            env={**self._env, **env, PULSE_FD: str(writing)},
            pass_fds=(*pass_fds, writing),
            on_line=self._on_line,
        )
        self.workers.append(worker)
        worker.start()
        if self._patience:
            watchdog = Watchdog(worker, reading, patience=self._patience)
            self._watching.append(asyncio.create_task(watchdog.watch(), name=f"watchdog of {name}"))

    async def run_engines(self, wanted: Mapping[str, Launch]) -> None:
        """Start, stop and restart engines until just these run; those whose command is the same are left alone."""
        async with self._changing:
            gone = [name for name, launch in self._launched.items() if wanted.get(name) != launch]
            # All that end, end before any begins: one may want the port that another had.
            await asyncio.gather(*(self._stop_engine(name) for name in gone))
            for name, launch in wanted.items():
                if name not in self._launched and not self._closing:
                    several = len(wanted) > 1
                    engine = Child(
                        f"engine {name}" if several else "engine",
                        launch.argv,
                        env={**inherited(self._env, launch.env), "PYTHONUNBUFFERED": "1"},
                        on_line=self._on_line,
                        obstacle=launch.obstacle,
                    )
                    self._launched[name] = launch
                    self.engines[name] = engine
                    engine.start()

    async def run_sidecar(self, wanted: SidecarConfig | None, env: Mapping[str, str]) -> None:
        """Have it run as ``wanted`` says, or not at all; one that is as wanted already is left alone.

        One that takes another's place loads its models first: until then the other goes on answering. Each has a
        socket of its own, and that of ``wanted`` is a link to whoever answers.
        """
        async with self._changing:
            if wanted == self._sidecar_config:
                return
            before, self._leaving = self.sidecar, self.sidecar
            self.sidecar, self._sidecar_config = None, None
            try:
                if wanted is not None and not self._closing:
                    self._sidecars += 1
                    address = Path(wanted.socket)
                    own = address.with_name(f"{address.name}.{self._sidecars}")
                    self._sidecar_config = wanted
                    self.sidecar = Child(
                        "sidecar",
                        (sys.executable, "-m", "gateway.sidecar.worker"),
                        env={
                            **inherited(self._env, INSTALLERS),
                            **env,
                            CONFIG: replace(wanted, socket=str(own)).to_json(),
                        },
                        on_line=self._on_line,
                    )
                    self.sidecar.start()
                    if before is not None:
                        await _loaded(own)
                    link = own.with_suffix(".link")
                    link.symlink_to(own.name)
                    link.replace(address)
            finally:
                if before is not None:
                    log.info("stopping %s", before.name)
                    await before.stop(self._grace)
                self._leaving = None

    async def shut_down(self) -> None:
        """Let the workers finish, then stop the engines and the sidecar."""
        self._closing = True
        await asyncio.gather(*(worker.stop(self._grace) for worker in self.workers))
        for task in self._watching:
            task.cancel()
        while self._pulses:
            os.close(self._pulses.pop())
        await self.run_engines({})
        await self.run_sidecar(None, {})

    def kill(self) -> None:
        """End everything at once."""
        self._closing = True
        for child in (*self.workers, *self.engines.values()):
            child.kill()
        for sidecar in (self.sidecar, self._leaving):
            if sidecar is not None:
                sidecar.kill()

    async def _stop_engine(self, name: str) -> None:
        engine = self.engines[name]
        log.info("stopping %s", engine.name)
        await engine.stop(self._grace)
        del self.engines[name], self._launched[name]


async def _loaded(path: Path) -> None:
    """Wait until the sidecar at ``path`` has loaded what it can, but no longer than is sensible."""
    async with aclosing(SidecarClient(path)) as client:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOADING):
                while True:
                    with suppress(SidecarError):
                        if "loading" not in (await client.status())["models"].values():
                            return
                    await asyncio.sleep(0.1)


class LastGood:
    """A copy of the policy files that worked last, for workers that start while the folder is broken."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "current"
        self._copies = 0

    def keep(self, loaded: Loaded) -> None:
        self._copies += 1
        copy = self.path.with_name(str(self._copies))
        copy.mkdir(mode=0o700)
        try:
            for source in loaded.sources:
                with open(copy / source.path.name, "xb", opener=_private) as file:
                    file.write(source.content or b"")
        except OSError as error:
            log.warning("no copy of the policy was made: %s", error)
            shutil.rmtree(copy, ignore_errors=True)
            return
        link = copy.with_suffix(".link")
        link.symlink_to(copy.name)
        before = self.path.resolve()
        link.replace(self.path)
        if before != self.path:
            shutil.rmtree(before, ignore_errors=True)


def _private(path: str, flags: int) -> int:
    """For ``open``: a policy may hold providers' keys."""
    return os.open(path, flags, 0o600)


@dataclass(frozen=True, slots=True)
class Events:
    """What a run tells whoever shows it."""

    on_line: OnLine
    on_wait: Callable[[str], None]
    """What it waits for, each time that changes."""
    on_ready: Callable[[Collection[str], Loaded], None]
    """The gateway can serve, and these backends can."""
    on_leave: Callable[[float], None]
    """It goes on serving for so many seconds, and is not ready any more."""
    on_stop: Callable[[], None]


async def run(settings: Settings, listener: socket.socket, env: Mapping[str, str], events: Events) -> int:
    """Serve until told to stop by a signal; the exit code is 0, or 128 and the signal that cut the draining short.

    Raises ``PolicyError`` if there is no policy to start with.
    """
    supervisor = Supervisor(
        env=env, on_line=events.on_line, drain_timeout=settings.drain_timeout, watchdog=settings.watchdog
    )
    signals = _Signals()
    with tempfile.TemporaryDirectory(prefix="tollgate-") as scratch:
        last_good = LastGood(Path(scratch))
        sidecar, leaving = Path(scratch) / "sidecar.sock", Path(scratch) / "leaving"

        async def take_up(loaded: Loaded) -> None:
            if not loaded.policy.keys and not loaded.policy.jwt and settings.dev_key_sha256 is None:
                log.warning(
                    "the policy has no keys, so nobody is let in; make one with 'tollgate keys create', or start "
                    "the gateway anew for a development key"
                )
            for problem in loaded.warnings:
                log.warning("%s", problem)
            for alone in not_shared(loaded.policy, settings.workers):
                log.warning("%s", alone)
            await asyncio.to_thread(last_good.keep, loaded)
            await supervisor.run_engines(launches(loaded))
            wanted = sidecar_config(loaded.policy, sidecar) if needs_sidecar(loaded.policy) else None
            await supervisor.run_sidecar(wanted, settings.of_logs())

        try:
            taken_up = Path(scratch) / "keys"
            taken_up.mkdir(mode=0o700)
            make_room(taken_up, settings.workers)
            also = (settings.state_dir / ISSUED,)
            async with (
                PolicyWatcher(settings.policies, take_up, env=env, also=also) as watcher,
                Control(settings.policies, settings.state_dir, watcher, taken_up, settings.workers, env),
            ):
                shared = _shared_metrics(Path(scratch)) if settings.workers > 1 else {}
                for number in range(1, settings.workers + 1):
                    own = replace(
                        settings,
                        worker=number,
                        last_good=last_good.path,
                        sidecar=sidecar,
                        leaving=leaving,
                        taken_up=taken_up,
                    )
                    supervisor.start_worker(
                        "gateway" if settings.workers == 1 else f"gateway {number}",
                        (sys.executable, "-m", "gateway.process.worker"),
                        env={**own.to_env(), **shared, SOCKET_FD: str(listener.fileno())},
                        pass_fds=[listener.fileno()],
                    )
                announcing = asyncio.create_task(
                    _announce(listener, watcher, events, settings.metrics_token or "")
                )
                await signals.stop.wait()
                was_ready = announcing.done()
                announcing.cancel()
                # Who presses Ctrl-C has no load balancer to wait for.
                if signals.last == signal.SIGTERM and was_ready and settings.shutdown_delay:
                    events.on_leave(settings.shutdown_delay)
                    leaving.touch()
                    await signals.pause(settings.shutdown_delay)
            events.on_stop()
            listener.close()
            draining = asyncio.create_task(supervisor.shut_down())
            forced = asyncio.create_task(signals.force.wait())
            await asyncio.wait([draining, forced], return_when=asyncio.FIRST_COMPLETED)
            supervisor.kill()
            await draining
            forced.cancel()
            return 128 + signals.last if signals.force.is_set() else 0
        finally:
            supervisor.kill()


def _shared_metrics(scratch: Path) -> dict[str, str]:
    """Where workers add up their figures, so that whichever is asked for ``/metrics`` tells those of all.

    Each sees for itself that there is room for its own (``gateway.observe.room``).
    """
    folder = scratch / "metrics"
    folder.mkdir(mode=0o700)
    return {"PROMETHEUS_MULTIPROC_DIR": str(folder)}


class _Signals:
    """The first asks to stop; each further one, of whoever cannot wait, ends what is waited for, draining included."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force = asyncio.Event()
        self._hasten: asyncio.Event | None = None
        self.last = 0
        self._first_at = 0.0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                loop.add_signal_handler(number, self._arrived, number)

    def _arrived(self, number: signal.Signals) -> None:
        self.last = number
        if not self.stop.is_set():
            self._first_at = time.monotonic()
            self.stop.set()
        elif time.monotonic() - self._first_at > _SAME_SIGNAL:
            self._first_at = time.monotonic()
            (self._hasten or self.force).set()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the next signal."""
        self._hasten = asyncio.Event()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hasten.wait(), seconds)
        self._hasten = None


async def _announce(listener: socket.socket, watcher: PolicyWatcher, events: Events, token: str) -> None:
    host, port = reachable(listener)
    said = ""
    while True:
        waiting = "the gateway to start"
        with suppress(OSError, ValueError, TimeoutError):
            status, body = await asyncio.wait_for(_get(host, port, "/readyz", token), 10.0)
            told = json.loads(body)
            verdicts, guards = told.get("backends", {}), told.get("guards", {})
            nobody = watcher.current is not None and not watcher.current.enabled
            if (status == 200 or nobody) and watcher.current is not None:
                ready = [name for name, verdict in verdicts.items() if verdict == "ready"]
                events.on_ready(ready, watcher.current)
                return
            # Without the advice to callers, which counts seconds and so is never twice the same.
            reasons = [
                *(
                    f"{name}: {verdicts[name].partition(' Try again')[0]}"
                    for name in told.get("waits_for", ())
                ),
                *(f"guard '{name}': {reason}" for name, reason in guards.items()),
                *([f"the store: {told['store']}"] if "store" in told else []),
            ]
            waiting = "; ".join(reasons) or "a backend that is enabled"
        if waiting != said:
            events.on_wait(waiting)
            said = waiting
        await asyncio.sleep(0.3)


def reachable(listener: socket.socket) -> tuple[str, int]:
    """Where this machine itself reaches a listening socket."""
    host, port = listener.getsockname()[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


async def _get(host: str, port: int, path: str, token: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = (
            f"GET {path} HTTP/1.1",
            "host: tollgate",
            f"authorization: Bearer {token}",
            "connection: close",
        )
        writer.write("\r\n".join((*head, "", "")).encode())
        answer, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(answer[9:12]), body
    finally:
        writer.close()


def _refused(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} on {host} is in use by another program. Stop that one, or take another port: "
                f"--port {port + 1 if port < 65535 else 8000} (0 takes any that is free)"
            )
        case errno.EACCES:
            return f"port {port} needs special rights. Take one from 1024 up: --port 8000"
        case errno.EADDRNOTAVAIL:
            return f"'{host}' is no address of this machine. Try --host 127.0.0.1, or --host 0.0.0.0 for all"
        case _:
            return f"cannot listen on {host}, port {port}: {error.strerror}"
