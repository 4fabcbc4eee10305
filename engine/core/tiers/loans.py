"""Slots of host memory that others than the tiers read or write: blocks on their way to or from another engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.core.tiers.tier import Tier


class Loans:
    """What is lent or reserved is not evicted, and counts as used, until it is given back."""

    def __init__(self, host: Tier) -> None:
        self.host = host
        self.lent: Counter[int] = Counter()
        """By slot with a block, how many read it."""
        self.reserved: set[int] = set()
        """To be filled."""

    def lend(self, key: bytes) -> int | None:
        """The slot of a block that is in host memory, to be read."""
        if key not in self.host:
            return None
        slot = self.host.hold(key)
        self.lent[slot] += 1
        return slot

    def take_back(self, slot: int, weight: float) -> None:
        self.lent[slot] -= 1
        if not self.lent[slot]:
            del self.lent[slot]
        self.host.let_go(slot, weight)

    def reserve(self, most: int) -> list[int]:
        """Slots to fill: so many, or as many as there are."""
        slots: list[int] = []
        while len(slots) < most and (slot := self.host.reserve()) is not None:
            slots.append(slot)
        self.reserved.update(slots)
        return slots

    def settle(self, filled: Sequence[tuple[bytes, int]], empty: Sequence[int], weight: float) -> None:
        """(key, slot) of those that have their blocks now, each after its parent; the others are free again."""
        self.reserved.difference_update(slot for _, slot in filled)
        self.reserved.difference_update(empty)
        self.host.keep(filled, weight)
        for slot in empty:
            self.host.give_back(slot)
