"""Waking at a time, not at the millisecond after it.

The loop's own timers count whole milliseconds, by which a schedule would be late on average; Linux' timerfd does not
(timerfd_create(2)). Elsewhere the loop's must do.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from time import monotonic
from types import TracebackType
from typing import Self

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class _Spec(ctypes.Structure):
    """``struct itimerspec``."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("s", ctypes.c_long),
        ("ns", ctypes.c_long),
    )


class Alarm:
    """One at a time. To be used within the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._fd = -1
        if self._libc is not None:
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._rings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    async def until(self, when: float) -> None:
        """``when`` is of ``time.monotonic``. Lets others have a turn in any case."""
        if when <= monotonic():
            await asyncio.sleep(0)
        while (left := when - monotonic()) > 0:
            self._waiter = self._loop.create_future()
            if self._fd < 0 or self._libc is None:
                self._loop.call_later(left, self._wake, self._waiter)
            else:
                seconds = int(when)
                spec = _Spec(0, 0, seconds, int((when - seconds) * 1e9))
                self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None)
            await self._waiter

    def _rings(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        if self._waiter is not None:
            self._wake(self._waiter)

    @staticmethod
    def _wake(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)
