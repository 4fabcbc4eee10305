"""The host memory that blocks are copied from and to, and another engine's, as far as this one can map it."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from engine.handover.wire import BrokenFrame

_SEAL_SHRINK = 0x0002
MEMORY, NIXL = "memory", "nixl"
"""Carriers: memory that both have mapped, and reads by NIXL."""


class Arena(Protocol):
    """``engine.worker.tiers.BlockCopier`` has it."""

    block_bytes: int

    @property
    def shared_file(self) -> int | None:
        """That has all slots one after the other, for processes of the same host to map."""
        ...

    @property
    def slots(self) -> int: ...

    def content(self, slot: int) -> memoryview: ...

    def settled(self) -> Callable[[], None]:
        """Waits, in any thread, until the copies launched so far are done."""
        ...


class Carrier(Protocol):
    """How blocks come that are lent, not sent."""

    def copy(self, pairs: Sequence[tuple[int, int]], deadline: float) -> None:
        """(slot of the other's arena, slot of this one's). Raises ``BrokenFrame``."""
        ...

    def close(self) -> None: ...


class Mapped:
    """Another engine's arena, read-only."""

    def __init__(self, file: int, size: int, arena: Arena) -> None:
        """Takes ``file``; copies to ``arena``. Raises ``BrokenFrame`` if it is not what was said."""
        self._arena = arena
        try:
            if os.fstat(file).st_size < size or not fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEAL_SHRINK:
                raise BrokenFrame("its shared memory is smaller than it says, or may become so")
            self._map = mmap.mmap(file, size, prot=mmap.PROT_READ)
        except OSError as error:
            raise BrokenFrame(f"its shared memory cannot be mapped: {error}") from None
        finally:
            os.close(file)
        self._view = memoryview(self._map)

    def copy(self, pairs: Sequence[tuple[int, int]], deadline: float) -> None:
        size = self._arena.block_bytes
        for slot, own in pairs:
            found = self._view[slot * size : (slot + 1) * size]
            if len(found) != size:
                raise BrokenFrame(f"its shared memory has no slot {slot}")
            # By NumPy, which lets other threads run meanwhile.
            place = np.frombuffer(self._arena.content(own), np.uint8)
            np.copyto(place, np.frombuffer(found, np.uint8))

    def close(self) -> None:
        self._view.release()
        self._map.close()
