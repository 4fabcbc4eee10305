"""Writing in batches from a thread of its own: callers on the event loop append an item, and wait for nothing.

Bounded, and lossless at shutdown; what must be lost all the same (a full backlog, an output that stays broken) is
counted. A process that is killed loses the last ``PAUSE`` seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

BACKLOG = 10_000
"""Items that may wait; further ones are lost."""
BATCH = 1_000
PAUSE = 0.05
"""Seconds in which items come together before they are written."""
SECONDS_TO_CLOSE = 3.0
SECONDS_TO_END = 0.5
"""That closing waits for a thread which is still in ``write``."""
WARN_EVERY = 60.0


class TryAgain(Exception):
    """``write`` failed for the time being: it is called again with the same batch, after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class BatchWriter(Generic[T]):
    """Calls ``write`` with batches of what was added, in order, in a thread that starts with the first item.

    ``write`` raises ``TryAgain`` to get the same batch again; whatever else it raises loses the batch.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[T]], None],
        *,
        end: Callable[[], None] | None = None,
        backlog: int | None = None,
        pause: float | None = None,
    ) -> None:
        """``end`` is called in the thread when it ends."""
        self.lost = 0
        self._name = name
        self._write = write
        self._end = end
        self._backlog = BACKLOG if backlog is None else backlog
        self._pause = pause
        self._items: deque[T] = deque()
        self._wake: SimpleQueue[None] = (
            SimpleQueue()
        )  # whose ends are in C, where an event takes two locks in Python
        self._awake = False
        """Whether the thread has been told of all that was added."""
        self._hurry = threading.Event()
        """Do not wait for more items to come together."""
        self._drained = threading.Condition()
        self._deadline = float("inf")
        self._thread: threading.Thread | None = None
        self._warned = float("-inf")

    def add(self, item: T) -> bool:
        """False where the item is lost, as too many wait."""
        if len(self._items) >= self._backlog:
            self.lost += 1
            return False
        self._items.append(item)
        if not self._awake:
            self._awake = True
            self._wake.put(None)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return True

    @property
    def closed(self) -> bool:
        return not self._backlog

    @property
    def backlog(self) -> int:
        """How many wait to be written."""
        return len(self._items)

    def waiting(self) -> list[T]:
        """What is not yet written, the oldest first."""
        return list(self._items)

    def hurry(self) -> None:
        """Write what waits now, without a pause."""
        self._hurry.set()

    def flush(self, timeout: float | None = None) -> bool:
        """Block until all is written; False if it takes longer than ``timeout`` seconds (None: no limit)."""
        if threading.current_thread() is self._thread:
            return False
        self.hurry()
        with self._drained:
            return self._drained.wait_for(lambda: not self._items, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Block until all is written, for ``timeout`` seconds (3) at most. What remains, or comes later, is lost."""
        seconds = SECONDS_TO_CLOSE if timeout is None else timeout
        self._backlog = 0
        self._deadline = time.monotonic() + seconds
        self.flush(seconds)
        self.lost += len(self._items)
        self._deadline = 0.0
        self._wake.put(None)
        self._hurry.set()
        thread = self._thread
        if self._end is not None and thread is not None and thread is not threading.current_thread():
            thread.join(SECONDS_TO_END)

    def warn(self, log: logging.Logger, message: str, *arguments: object) -> None:
        """Once a minute: an output that fails does so for every batch."""
        now = time.monotonic()
        if now - self._warned >= WARN_EVERY:
            self._warned = now
            log.warning(message, *arguments)

    def _run(self) -> None:
        while time.monotonic() < self._deadline:
            self._wake.get()
            self._awake = False  # before it looks: what is added from here on wakes it once more
            self._hurry.wait(PAUSE if self._pause is None else self._pause)
            self._hurry.clear()
            while self._items and time.monotonic() < self._deadline:
                self._write_batch()
            with self._drained:
                self._drained.notify_all()
        if self._end is not None:
            self._end()

    def _write_batch(self) -> None:
        batch = self.waiting()[:BATCH]  # in one step: callers go on adding
        try:
            self._write(batch)
        except TryAgain as again:
            self._hurry.wait(again.seconds)
            self._hurry.clear()
            return
        except Exception:
            self.lost += len(batch)
            log.exception("%s: %d items are lost to a bug", self._name, len(batch))
        # Only now, as whoever waits for the end waits for the writing.
        for _ in batch:
            self._items.popleft()
