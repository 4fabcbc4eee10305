"""The signals by which ``tollgate serve`` is stopped."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress

_ECHO = 0.2
"""Seconds in which a second signal is a duplicate: some wrappers forward what the terminal has sent already."""


class StopSignals:
    """The first signal asks to stop; each further one cuts short the current wait, draining included."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force = asyncio.Event()
        self.last = 0
        self._skip_pause: asyncio.Event | None = None
        self._received_at = 0.0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
                loop.add_signal_handler(number, self._received, number)

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the next signal."""
        self._skip_pause = asyncio.Event()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._skip_pause.wait(), seconds)
        self._skip_pause = None

    def _received(self, number: signal.Signals) -> None:
        self.last = number
        if not self.stop.is_set():
            self._received_at = time.monotonic()
            self.stop.set()
        elif time.monotonic() - self._received_at > _ECHO:
            self._received_at = time.monotonic()
            (self._skip_pause or self.force).set()
