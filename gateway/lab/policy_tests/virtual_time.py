"""Time that passes only where somebody waits for it: a minute's wait takes no time, and comes out the same each time.

A process of its own runs in it: ``VirtualTime.begin`` replaces the clocks of the module ``time`` before the gateway is
imported, whose classes take them as defaults.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

START = 1_000.0
"""Of the clocks whose zero means nothing."""
REAL_WAIT = 0.01
"""Seconds between two looks whether a thread is done."""


class VirtualTime:
    """All clocks of the process."""

    def __init__(self) -> None:
        self._passed = START
        self._unix = time.time() - START
        """Unix time when ``_passed`` was 0."""

    def begin(self) -> None:
        time.time = lambda: self._unix + self._passed
        time.time_ns = lambda: int((self._unix + self._passed) * 1e9)
        time.monotonic = time.perf_counter = lambda: self._passed
        time.monotonic_ns = time.perf_counter_ns = lambda: int(self._passed * 1e9)

    def set(self, unix: float) -> None:
        """It is ``unix`` now."""
        self._unix = unix - self._passed

    def pass_by(self, seconds: float) -> None:
        self._passed += seconds

    def now(self) -> float:
        return self._passed


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting is nothing but a step of the clock."""

    def __init__(self, clock: VirtualTime) -> None:
        self.threads = 0
        """That work for a coroutine, in real time: the clock stands still meanwhile."""
        super().__init__(_Selector(clock, lambda: self.threads > 0))

    def run_in_executor(  # type: ignore[override]  # whatever it takes and returns
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        self.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._done)
        return future

    async def shutdown_default_executor(self, *given: Any) -> None:
        self.threads += 1
        try:
            await super().shutdown_default_executor(*given)
        finally:
            self.threads -= 1

    def _done(self, future: asyncio.Future[Any]) -> None:
        self.threads -= 1


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: VirtualTime, works: Callable[[], bool]) -> None:
        super().__init__()
        self._clock = clock
        self._works = works

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self._works():
            return list(super().select(REAL_WAIT))
        if timeout is None:
            raise RuntimeError("nothing will ever happen: everybody waits for somebody else")
        self._clock.pass_by(timeout)
        return ready
