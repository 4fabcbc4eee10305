"""The host memory that blocks are copied from and to, and another engine's, as far as this one can map it."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Protocol

from engine.handover.wire import BrokenFrame

_SEAL_SHRINK = 0x0002


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


class Mapped:
    """Another engine's arena, read-only."""

    def __init__(self, file: int, size: int) -> None:
        """Takes ``file``. Raises ``BrokenFrame`` if it is not what was said."""
        try:
            if os.fstat(file).st_size < size or not fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEAL_SHRINK:
                raise BrokenFrame("its shared memory is smaller than it says, or may become so")
            self._map = mmap.mmap(file, size, prot=mmap.PROT_READ)
        except OSError as error:
            raise BrokenFrame(f"its shared memory cannot be mapped: {error}") from None
        finally:
            os.close(file)
        self._view = memoryview(self._map)

    def content(self, slot: int, block_bytes: int) -> memoryview:
        """Raises ``BrokenFrame`` for one that is not there."""
        found = self._view[slot * block_bytes : (slot + 1) * block_bytes]
        if len(found) != block_bytes:
            raise BrokenFrame(f"its shared memory has no slot {slot}")
        return found

    def close(self) -> None:
        self._view.release()
        self._map.close()
