"""The children of ``tollgate serve``: workers, launched engines and the sidecar."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

from gateway.backends.launcher import Launch
from gateway.children.child import Child, OnLine
from gateway.children.environment import INSTALLERS, inherited
from gateway.children.watchdog import PULSE_FD, Watchdog
from gateway.process.engines import Engines
from gateway.process.golden_set import GoldenSets
from gateway.sidecar.api import SidecarError
from gateway.sidecar.client import SidecarClient
from gateway.sidecar.config import CONFIG, SidecarConfig

log = logging.getLogger(__name__)

_SLACK = 5.0
"""Seconds more than the drain timeout that a child gets before it is killed."""
_LOADING = 60.0
"""Seconds, at most, for which the old sidecar answers while its successor loads its models."""


class Supervisor:
    """Workers, engines and the sidecar, started and stopped in the right order."""

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        on_line: OnLine,
        drain_timeout: float,
        watchdog: float = 0.0,
        policies: Path = Path(),
    ) -> None:
        """``policies`` is the folder in which golden sets are.

        ``watchdog``: seconds of processor time after which a worker with a blocked loop is replaced; 0: off."""
        self.workers: list[Child] = []
        self.sidecar: Child | None = None
        self._sidecar_config: SidecarConfig | None = None
        self._sidecars = 0
        """How many were started; it numbers their sockets."""
        self._old_sidecar: Child | None = None
        """The one that answers until its successor has loaded its models."""
        self._env = dict(env)
        self._on_line = on_line
        self._grace = drain_timeout + _SLACK
        self._engines = Engines(self._engine, self._grace, GoldenSets(policies, self._env).objection)
        self._several = False
        """Whether there are several engines, which are told apart by name."""
        self._closing = False
        self._changing = asyncio.Lock()
        self._watchdog = watchdog
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
        if self._watchdog:
            watchdog = Watchdog(worker, reading, patience=self._watchdog)
            self._watching.append(asyncio.create_task(watchdog.watch(), name=f"watchdog of {name}"))

    async def run_engines(self, wanted: Mapping[str, Launch]) -> None:
        """Have exactly these run, as ``Engines.run`` does it."""
        async with self._changing:
            self._several = len(wanted) > 1
            await self._engines.run({} if self._closing else wanted)

    @property
    def engines(self) -> Mapping[str, Child]:
        """Those that serve, by backend."""
        return self._engines.running

    def _engine(
        self, name: str, launch: Launch, argv: tuple[str, ...], obstacle: Callable[[], str | None]
    ) -> Child:
        return Child(
            f"engine {name}" if self._several else "engine",
            argv,
            env={**inherited(self._env, launch.env), **launch.variables, "PYTHONUNBUFFERED": "1"},
            on_line=self._on_line,
            obstacle=obstacle,
        )

    async def run_sidecar(self, wanted: SidecarConfig | None, env: Mapping[str, str]) -> None:
        """Have it run as ``wanted`` says, or not at all; with the same configuration it keeps running.

        A successor loads its models first, and the old one answers until then. Each has a socket of its own;
        ``wanted.socket`` is a link to that of the one that answers.
        """
        async with self._changing:
            if wanted == self._sidecar_config:
                return
            before, self._old_sidecar = self.sidecar, self.sidecar
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
                        await _models_loaded(own)
                    link = own.with_suffix(".link")
                    link.symlink_to(own.name)
                    link.replace(address)
            finally:
                if before is not None:
                    log.info("stopping %s", before.name)
                    await before.stop(self._grace)
                self._old_sidecar = None

    async def shut_down(self) -> None:
        """Let the workers finish, then stop the engines and the sidecar."""
        self._closing = True
        await asyncio.gather(*(worker.stop(self._grace) for worker in self.workers))
        for task in self._watching:
            task.cancel()
        while self._pulses:
            os.close(self._pulses.pop())
        async with self._changing:
            await self._engines.end()
        await self.run_sidecar(None, {})

    def kill(self) -> None:
        """End everything at once."""
        self._closing = True
        for child in self.workers:
            child.kill()
        self._engines.kill()
        for sidecar in (self.sidecar, self._old_sidecar):
            if sidecar is not None:
                sidecar.kill()


async def _models_loaded(path: Path) -> None:
    """Wait until the sidecar at ``path`` has loaded its models, or for ``_LOADING`` seconds."""
    async with aclosing(SidecarClient(path)) as client:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOADING):
                while True:
                    with suppress(SidecarError):
                        if "loading" not in (await client.status())["models"].values():
                            return
                    await asyncio.sleep(0.1)
