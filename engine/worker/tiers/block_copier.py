"""Moves blocks between the KV cache, an arena in host memory and a file: what ``engine/core/tiers/copier.py`` asks for.

Copies to a GPU are launched on the stream that steps are launched on, so they are in order with these; threads that
read and write the file wait for the last copy to or from the arena.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.core.rate import Rate
from engine.core.tiers.copier import Copied
from engine.worker.tiers.arena import allocate
from engine.worker.tiers.block_file import BlockFile
from engine.worker.tiers.block_rows import BlockRows, DeviceRows, HostRows, row_bytes


class BlockCopier:
    def __init__(
        self,
        tensors: Sequence[Tensor],
        slots: int,
        file: BlockFile | None = None,
        *,
        shared: bool = False,
    ) -> None:
        """``tensors``: of all layers, the first dimension of each is blocks. ``shared``: other processes are to map
        the host memory, where it can be."""
        self.slots = slots
        self.block_bytes = row_bytes(tensors)
        self._on_gpu = tensors[0].device.type == "cuda"
        self._arena, self.shared_file = allocate(slots, self.block_bytes, pinned=self._on_gpu, shared=shared)
        self._stream: torch.cuda.Stream | None = None
        if self._on_gpu:
            rows = DeviceRows(tensors, self._arena)
            self._rows: BlockRows = rows
            self._stream = rows.stream
        else:
            self._rows = HostRows(tensors, self._arena)
        self._file = file
        self._loads, self._reads = Rate(), Rate()
        self._launched: torch.cuda.Event | None = None
        """Behind the last copy to or from the arena."""
        self._timed: tuple[torch.cuda.Event, torch.cuda.Event, int] | None = None
        """Around a load whose time is not known yet, and its bytes."""
        self._done: queue.SimpleQueue[Copied] = queue.SimpleQueue()
        self._progress = threading.Event()
        self._threads: list[tuple[queue.SimpleQueue[Callable[[], None] | None], threading.Thread]] = []
        if file is not None:
            # One each, so that no read waits for writes.
            self._threads = [self._start(name) for name in ("kv-read", "kv-write")]

    @property
    def load_bandwidth(self) -> float:
        return self._loads.value

    @property
    def read_bandwidth(self) -> float:
        return self._reads.value

    @torch.inference_mode()
    def save(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._rows.save(pairs)
        if self._stream is not None:
            self._launched = self._stream.record_event()

    @torch.inference_mode()
    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._measure()
        start, began = None, time.perf_counter()
        if self._on_gpu:
            start = torch.cuda.Event(enable_timing=True)
            start.record()
        self._rows.load(pairs)
        self._mark()
        size = len(pairs) * self.block_bytes
        if start is None or self._launched is None:
            self._loads.add(size, time.perf_counter() - began)
        else:
            self._timed = start, self._launched, size

    def write(self, key: bytes, slot: int, place: int, depth: int) -> None:
        settle, file, content = self.settled(), self._opened(), self.content(slot)

        def write() -> None:
            settle()
            self._report(Copied(key, slot, place, False, file.write(place, key, depth, content)))

        self._threads[1][0].put(write)

    def read(self, key: bytes, place: int, slot: int) -> None:
        settle, file, content = self.settled(), self._opened(), self.content(slot)

        def read() -> None:
            settle()
            began = time.perf_counter()
            good = file.read(place, key, content)
            self._reads.add(self.block_bytes, time.perf_counter() - began)
            self._report(Copied(key, slot, place, True, good))

        self._threads[0][0].put(read)

    def copied(self) -> list[Copied]:
        self._progress.clear()
        found = []
        while not self._done.empty():
            found.append(self._done.get())
        return found

    def wait(self, seconds: float) -> None:
        self._progress.wait(seconds)

    def close(self) -> None:
        """Once what was begun is done."""
        for orders, thread in self._threads:
            orders.put(None)
            thread.join()
        self._threads = []
        if self._file is not None:
            self._file.close()
        if self.shared_file is not None:
            os.close(self.shared_file)
            self.shared_file = None

    def _start(self, name: str) -> tuple[queue.SimpleQueue[Callable[[], None] | None], threading.Thread]:
        orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

        def run() -> None:
            while (order := orders.get()) is not None:
                order()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return orders, thread

    def _report(self, copied: Copied) -> None:
        self._done.put(copied)
        self._progress.set()

    def _mark(self) -> None:
        if self._on_gpu:
            self._launched = torch.cuda.Event(enable_timing=True)
            self._launched.record()

    def _measure(self) -> None:
        """On a GPU, how long the last load took, if it is done by now."""
        if self._timed is not None and self._timed[1].query():
            start, end, size = self._timed
            self._timed = None
            self._loads.add(size, start.elapsed_time(end) / 1000)

    def content(self, slot: int) -> memoryview:
        return memoryview(self._arena[slot].numpy())

    def settled(self) -> Callable[[], None]:
        """Waits, in any thread, until the copies to and from host memory that were launched so far are done."""
        launched = self._launched

        def settle() -> None:
            if launched is not None:
                launched.synchronize()

        return settle

    def _opened(self) -> BlockFile:
        if self._file is None:
            raise RuntimeError("there is no disk to copy to")
        return self._file
