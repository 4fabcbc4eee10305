"""Which slot of the state cache each running request has, where layers keep a state in place of keys and values.

A request gets a slot when it starts, and gives it back with its blocks: a request that starts again, as it was
preempted, starts from nothing. Nothing is taken back from a state: what was computed twice would count twice.
"""

from __future__ import annotations

from collections.abc import Iterable

NO_SLOT = -1


class StateSlots:
    def __init__(self, count: int) -> None:
        self._count = count
        self._free = list(range(count - 1, -1, -1))
        self._copies: list[tuple[int, int]] = []

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """Raises ``IndexError`` if none is free."""
        return self._free.pop()

    def fork(self, slot: int) -> int:
        """A slot whose state is to be that of ``slot``, as it is when the next plan starts; ``NO_SLOT`` if none is
        free."""
        if not self._free:
            return NO_SLOT
        own = self._free.pop()
        self.copy(slot, own)
        return own

    def copy(self, source: int, target: int) -> None:
        """``target`` is to be as ``source`` is when the next plan starts."""
        self._copies.append((source, target))

    def release(self, slot: int) -> None:
        if slot != NO_SLOT:
            self._free.append(slot)

    def take_copies(self) -> list[tuple[int, int]]:
        """(from, to), in order: to be done before anything of the next plan is computed."""
        copies, self._copies = self._copies, []
        return copies

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raises ``AssertionError`` unless each slot is free or one request's."""
        found = sorted([*self._free, *(slot for slot in held if slot != NO_SLOT)])
        if found != list(range(self._count)):
            raise AssertionError(f"of {self._count} state slots, these are free or held: {found}")
