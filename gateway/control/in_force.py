"""What each worker of this gateway obeys, and from when on all of them obey what its supervisor has applied."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from gateway.control.client import TIMEOUT
from gateway.policy.loader import Loaded
from gateway.policy.reload import PolicyWatcher

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.05
_LOOK_SELDOM = 1.0
"""Seconds, of what takes long already."""


class InForce:
    """Compares what the workers ``publish`` with what this process obeys.

    Within its ``async with`` block it logs each generation that was announced, once it is in force.
    """

    def __init__(self, folder: Path, workers: int, watcher: PolicyWatcher) -> None:
        """``folder`` is where each of the ``workers`` writes a digest of the policy and keys it obeys."""
        self._folder = folder
        self._workers = workers
        self._watcher = watcher
        self._announced: tuple[int, Loaded] | None = None
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> InForce:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    def announce(self, number: int, loaded: Loaded) -> None:
        """This process is about to obey ``loaded``, generation ``number``; one announced before is overtaken."""
        self._announced = number, loaded
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow(), name="generation in force")

    async def until(self, applied: Callable[[], bool]) -> bool:
        """Wait until ``applied`` holds and every worker obeys what this process does; False: not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT):
                while not applied() or await self._behind():  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_EVERY)
            return True
        return False

    async def _follow(self) -> None:
        since, warned = time.monotonic(), 0
        before = self._announced
        while self._announced is not None:
            if self._announced is not before:
                since, before = time.monotonic(), self._announced
            behind = await self._behind()
            late = time.monotonic() - since >= TIMEOUT
            if late and self._announced is not None and warned != (number := self._announced[0]):
                warned = number
                which = f": worker {', '.join(map(str, behind))}" if behind else ""
                log.warning("policy generation %d is not in force everywhere yet%s", number, which)
            await asyncio.sleep(_LOOK_SELDOM if late else _LOOK_EVERY)

    async def _behind(self) -> Collection[int]:
        """The workers that obey another policy, or accept other keys, than this process does. Where there are none,
        the generation that was announced is logged, so that whoever waits for it is told no earlier."""
        wanted = self._watcher.in_force
        behind = await asyncio.to_thread(self._other_than, wanted)
        if self._watcher.in_force != wanted:
            return range(1, self._workers + 1)
        if not behind and self._announced is not None and self._announced[1] is self._watcher.current:
            log.info("policy generation %d is in force", self._announced[0])
            self._announced = None
        return behind

    def _other_than(self, wanted: str) -> list[int]:
        return [number for number in range(1, self._workers + 1) if self._published(number) != wanted]

    def _published(self, worker: int) -> str | None:
        try:
            return (self._folder / str(worker)).read_text()
        except FileNotFoundError:
            return None


def publish(folder: Path, worker: int, in_force: str) -> None:
    """Write down what a worker obeys (``PolicyWatcher.in_force``), for ``InForce`` to read.

    Digests are of one length and written in place, so that a full disk has the space that ``preallocate`` took.
    Raises ``OSError``.
    """
    descriptor = os.open(folder / str(worker), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, in_force.encode(), 0)
    finally:
        os.close(descriptor)


def preallocate(folder: Path, workers: int) -> None:
    """Reserve the disk space for ``publish``, as far as there is any."""
    with suppress(OSError):
        for number in range(1, workers + 1):
            publish(folder, number, f"{'-' * 64} {'-' * 64}")
