"""A pool of processes, one task each at a time: a task that crashes or hangs costs only itself."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

LIMIT = 90.0
"""Seconds for one task, compilation included."""
START = 90.0
"""Additional seconds for a process's first task, which imports and initialises the device."""
GRACE = 20.0
"""Seconds after the deadline for tasks in progress."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A task without a result."""

    reason: str
    """What happened to the process, or to the time."""
    skipped: bool = False
    """Whether it never started, or was in progress at the deadline, and so proves nothing."""


Work = Callable[..., tuple[Any, bool]]
"""A module's function: from its common arguments and a task to a result, and whether the process can go on."""


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    fresh: bool = True
    task: Any = None
    overdue: float = 0.0

    def end(self) -> None:
        self.connection.close()
        if self.task is None:
            # It exits by itself.
            self.process.join(5)
        self.process.kill()
        self.process.join()


class Pool:
    """``begin`` and ``take`` are called in this process when tasks start and complete, in any order."""

    def __init__(
        self,
        work: Work,
        arguments: tuple[Any, ...],
        jobs: int,
        deadline: float,
        begin: Callable[[Any], None],
        take: Callable[[Any, Any], None],
    ) -> None:
        """``deadline``: ``time.time()`` after which no task is started."""
        self._context = multiprocessing.get_context("spawn")
        self._start = (work, arguments)
        self._jobs, self._deadline = jobs, deadline
        self._begin, self._take = begin, take
        self._workers: list[_Worker] = []

    def run(self, tasks: Sequence[Any]) -> None:
        waiting = deque(tasks)
        try:
            while waiting or any(worker.task is not None for worker in self._workers):
                while waiting and time.time() > self._deadline:
                    self._take(waiting.popleft(), Lost("no time left", skipped=True))
                while waiting and (worker := self._free()) is not None:
                    self._assign(worker, waiting.popleft())
                self._receive()
        finally:
            for worker in self._workers:
                worker.end()
            self._workers = []

    def _free(self) -> _Worker | None:
        for worker in list(self._workers):
            if worker.task is None and worker.process.is_alive():
                return worker
            if worker.task is None:
                self._drop(worker)
        if len(self._workers) >= self._jobs:
            return None
        here, there = self._context.Pipe()
        process = self._context.Process(target=_work, args=(there, *self._start), daemon=True)
        process.start()
        there.close()
        self._workers.append(_Worker(process, here))
        return self._workers[-1]

    def _assign(self, worker: _Worker, task: Any) -> None:
        limit = LIMIT + START if worker.fresh else LIMIT
        worker.overdue = min(time.time() + limit, max(self._deadline, time.time()) + GRACE)
        worker.task, worker.fresh = task, False
        self._begin(task)
        # If it has just died, reading gives end of file.
        with suppress(BrokenPipeError):
            worker.connection.send(task)

    def _receive(self) -> None:
        busy = {worker.connection: worker for worker in self._workers if worker.task is not None}
        if not busy:
            return
        soonest = min(worker.overdue for worker in busy.values())
        for connection in wait(list(busy), max(0.0, soonest - time.time())):
            worker = busy.pop(connection)  # type: ignore[arg-type]
            task, worker.task = worker.task, None
            try:
                result, sound = worker.connection.recv()
            except (EOFError, ConnectionError):
                result, sound = Lost("its process ended"), False
            if not sound:
                self._drop(worker)
            self._take(task, result)
        for worker in busy.values():
            if time.time() >= worker.overdue:
                self._drop(worker)
                late = time.time() >= self._deadline
                self._take(worker.task, Lost("not done in time, and ended", skipped=late))

    def _drop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.end()


def _work(connection: Connection, work: Work, arguments: tuple[Any, ...]) -> None:
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(work(*arguments, task))
