"""Who moves the content of blocks between the tiers: the scheduler's orders to it, and what it reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy to or from the disk is done."""

    key: bytes
    slot: int
    """In host memory."""
    place: int
    """On disk."""
    read: bool
    """From the disk, else to it."""
    good: bool = True
    """Whether it succeeded: not if the disk is full, or what was read is not what was written."""


class Copier(Protocol):
    """``engine.worker.tiers.BlockCopier`` does it; tests and simulations have others."""

    block_bytes: int

    @property
    def load_bandwidth(self) -> float:
        """Bytes a second from host memory to the device; 0: not known."""
        ...

    @property
    def read_bandwidth(self) -> float:
        """Bytes a second from the disk to host memory; 0: not known."""
        ...

    def save(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(block, slot), from the device to host memory: after the steps launched so far, before those launched
        later."""
        ...

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(slot, block), from host memory to the device, in the same order."""
        ...

    def write(self, key: bytes, slot: int, place: int, depth: int) -> None:
        """From host memory to the disk, some time later. ``depth``: blocks from the start up to this one."""
        ...

    def read(self, key: bytes, place: int, slot: int) -> None:
        """From the disk to host memory, some time later."""
        ...

    def copied(self) -> list[Copied]:
        """Writes and reads that are done, and were not reported yet."""
        ...

    def wait(self, seconds: float) -> None:
        """Until one is done, or so long."""
        ...

    def close(self) -> None:
        """Ends, once what was begun is done."""
        ...
