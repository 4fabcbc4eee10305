"""Moves blocks between the KV cache, an arena in host memory and a file: what ``engine/core/tiers/copier.py`` asks for.

A block's content is one row of bytes: its part of each layer's tensors, one after the other, whatever the attention
backend's layout. Copies to and from a GPU are launched on the stream that steps are launched on, so they are in order
with these; threads that read and write the file wait for the last of them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from engine.core.rate import Rate
from engine.core.tiers.copier import Copied
from engine.worker.tiers.block_file import BlockFile

_STAGED = 32 * 2**20
"""Bytes gathered at a time."""


class BlockCopier:
    def __init__(self, tensors: Sequence[Tensor], slots: int, file: BlockFile | None = None) -> None:
        """``tensors``: of all layers, the first dimension of each is blocks."""
        self._tensors = list(tensors)
        self._sizes = [row_bytes(tensor) for tensor in tensors]
        self._device = tensors[0].device
        self.block_bytes = sum(self._sizes)
        self._on_gpu = self._device.type == "cuda"
        self._arena = torch.empty(slots, self.block_bytes, dtype=torch.uint8, pin_memory=self._on_gpu)
        self._step = max(1, _STAGED // self.block_bytes)
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
        for part, blocks in self._parts(pairs, 0):
            rows = torch.cat([_rows(tensor.index_select(0, blocks)) for tensor in self._tensors], 1)
            for row, (_, slot) in zip(rows, part, strict=True):
                self._arena[slot].copy_(row, non_blocking=True)
        self._mark()

    @torch.inference_mode()
    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._measure()
        start, began = None, time.perf_counter()
        if self._on_gpu:
            start = torch.cuda.Event(enable_timing=True)
            start.record()
        for part, blocks in self._parts(pairs, 1):
            rows = torch.empty(len(part), self.block_bytes, dtype=torch.uint8, device=self._device)
            for row, (slot, _) in zip(rows, part, strict=True):
                row.copy_(self._arena[slot], non_blocking=True)
            for tensor, own in zip(self._tensors, rows.split(self._sizes, 1), strict=True):
                content = own.contiguous().view(tensor.dtype).view(len(part), *tensor.shape[1:])
                tensor.index_copy_(0, blocks, content)
        self._mark()
        size = len(pairs) * self.block_bytes
        if start is None or self._launched is None:
            self._loads.add(size, time.perf_counter() - began)
        else:
            self._timed = start, self._launched, size

    def write(self, key: bytes, slot: int, place: int, depth: int) -> None:
        launched, file, content = self._launched, self._opened(), self._content(slot)

        def write() -> None:
            if launched is not None:
                launched.synchronize()
            self._report(Copied(key, slot, place, False, file.write(place, key, depth, content)))

        self._threads[1][0].put(write)

    def read(self, key: bytes, place: int, slot: int) -> None:
        launched, file, content = self._launched, self._opened(), self._content(slot)

        def read() -> None:
            if launched is not None:
                launched.synchronize()
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

    def _parts(
        self, pairs: Sequence[tuple[int, int]], side: int
    ) -> Iterator[tuple[Sequence[tuple[int, int]], Tensor]]:
        """So many at a time, and the blocks of these on the device."""
        for first in range(0, len(pairs), self._step):
            part = pairs[first : first + self._step]
            yield part, torch.tensor([pair[side] for pair in part], device=self._device)

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

    def _content(self, slot: int) -> memoryview:
        return memoryview(self._arena[slot].numpy())

    def _opened(self) -> BlockFile:
        if self._file is None:
            raise RuntimeError("there is no disk to copy to")
        return self._file


def row_bytes(tensor: Tensor) -> int:
    """Of a block's part of it."""
    return tensor[0].numel() * tensor.element_size()


def _rows(blocks: Tensor) -> Tensor:
    """Each block's bytes."""
    return blocks.reshape(len(blocks), -1).view(torch.uint8)
