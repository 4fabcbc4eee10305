"""Detects that the machine stalled, which makes the verdict of a test with deadlines below a second worthless."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

STEP = 0.01
TOO_LONG = 0.05
"""Seconds late: less than the shortest margin in such a test, between a deadline and what is to happen before it."""


class StallDetector:
    """Measures in a thread of its own how late it wakes."""

    def __init__(self) -> None:
        self.longest = 0.0
        """Seconds."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(STEP):
            now = time.monotonic()
            self.longest = max(self.longest, now - before - STEP)
            before = now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
