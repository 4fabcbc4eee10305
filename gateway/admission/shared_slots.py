"""One backend's ``max_concurrency``, shared by the workers of one ``tollgate serve``.

Each worker is entitled to its share of the slots. What the others do not use it may use as well, and leaves to them as
its requests end: while a worker waits that has less than its share, no other takes more than its own. The counts are in
a file that all workers map into memory. Each writes its own alone, under a lock where it takes slots, so that together
they never exceed the limit; a FIFO wakes those that wait.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

_CELLS = 3
"""Of each worker: slots in use, requests waiting, and slots in use by what gives them back on demand."""
_CELL_BYTES = 8


class SharedSlots:
    """One backend's slots, as worker number ``index`` (from 0) of ``workers`` sees and takes them."""

    def __init__(self, file: Path, index: int, workers: int, wake: Callable[[int], None]) -> None:
        """``wake`` is called with the index of a worker that may get a slot now."""
        self.limit = 0
        """Of all workers together. Each reads it from the policy, so that they differ for a moment after an edit."""
        self._index = index
        self._workers = workers
        self._wake = wake
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        size = workers * _CELLS * _CELL_BYTES
        os.ftruncate(self._fd, size)
        self._map = mmap.mmap(self._fd, size)
        self._cells = memoryview(self._map).cast("q")
        # A worker that died leaves its counts behind.
        for cell in range(_CELLS):
            self._cells[cell * workers + index] = 0

    @property
    def available(self) -> int:
        """Slots that this worker may use: all but those that others use, or wait for and are entitled to."""
        cells = self._cells.tolist()
        used, waiting = cells[: self._workers], cells[self._workers :]
        others = sum(
            max(used[other], min(self._entitled(other), used[other] + waiting[other]))
            for other in range(self._workers)
            if other != self._index
        )
        return max(0, self.limit - others)

    @property
    def idle(self) -> bool:
        """No worker uses any."""
        return not any(self._cells[: self._workers].tolist())

    @property
    def in_use(self) -> int:
        """By all workers."""
        return sum(self._cells[: self._workers].tolist())

    @property
    def wanted_by_others(self) -> int:
        """Requests of other workers that wait."""
        waiting = self._cells[self._workers : 2 * self._workers].tolist()
        return sum(count for other, count in enumerate(waiting) if other != self._index)

    def set_reclaimable(self, slots: int) -> None:
        self._cells[2 * self._workers + self._index] = slots

    def call_in(self) -> None:
        """Have the other workers look whether they hold anything that they should give back."""
        for other in range(self._workers):
            if other != self._index and self._cells[2 * self._workers + other]:
                self._wake(other)

    def take(self, slots: int) -> bool:
        """Whether they were free; what is larger than the limit gets them if no worker uses any."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            if self._cells[self._index] + slots > self.available and not self.idle:
                return False
            self._cells[self._index] += slots
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def add(self, slots: int) -> None:
        """They are in use already."""
        self._cells[self._index] += slots

    def give_back(self, slots: int) -> None:
        self._cells[self._index] -= slots
        for other in range(self._workers):
            if other != self._index and self._cells[self._workers + other]:
                self._wake(other)

    def set_waiting(self, requests: int) -> bool:
        """Whether this worker waits, and did not before."""
        before = self._cells[self._workers + self._index]
        self._cells[self._workers + self._index] = requests
        return bool(requests) and not before

    def close(self) -> None:
        for cell in range(_CELLS):
            self._cells[cell * self._workers + self._index] = 0
        self._cells.release()
        self._map.close()
        os.close(self._fd)

    def _entitled(self, worker: int) -> int:
        whole, left = divmod(self.limit, self._workers)
        return whole + (worker < left)


class SlotExchange:
    """The folder in which the workers of one gateway share slots. ``worker`` counts from 1."""

    def __init__(self, folder: Path, worker: int, workers: int) -> None:
        self.workers = workers
        self._folder = folder
        self._index = worker - 1
        self._fifos = [self._fifo(number) for number in range(1, workers + 1)]
        self._listening = False

    def of(self, backend: str) -> SharedSlots:
        name = sha256(backend.encode()).hexdigest()[:32]
        return SharedSlots(self._folder / name, self._index, self.workers, self._wake)

    def listen(self, on_wake: Callable[[], None]) -> None:
        """Have ``on_wake`` called, by the running event loop, when slots may be free that this worker waits for."""
        if not self._listening:
            self._listening = True
            asyncio.get_running_loop().add_reader(self._fifos[self._index], self._woken, on_wake)

    def _woken(self, on_wake: Callable[[], None]) -> None:
        with suppress(BlockingIOError):
            os.read(self._fifos[self._index], 4096)
        on_wake()

    def _wake(self, index: int) -> None:
        with suppress(BlockingIOError):  # it has more wake-ups than it can read already
            os.write(self._fifos[index], b"\0")

    def _fifo(self, number: int) -> int:
        path = self._folder / f"wake-{number}"
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Opened for both, it neither waits for a reader nor ends with one.
        return os.open(path, os.O_RDWR | os.O_NONBLOCK)
