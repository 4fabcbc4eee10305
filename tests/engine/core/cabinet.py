"""Host memory for adapters beside ``Device``: it reads at some time, and drops whatever it may."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import TYPE_CHECKING

from engine.core.adapter_slots import AdapterSlots

if TYPE_CHECKING:
    from tests.engine.core.world import World


class Cabinet:
    def __init__(self, rng: Random, world: World) -> None:
        slots = rng.choice((1, 1, 2, 3))
        self.most = slots + rng.choice((0, 0, 1, 3))
        self.slots = AdapterSlots(slots, self)
        self.inside: list[str | None] = [None] * slots
        """What the device has in its slots."""
        self.reading: list[str] = []
        self._rng = rng
        self._world = world
        self._held: list[str] = []

    def has(self, key: str) -> bool:
        return key in self._held

    def want(self, keys: Sequence[str], keep: Collection[str]) -> None:
        assert len(keys) == len(set(keys)) <= self.most
        for key in keys:
            if self.has(key) or key in self.reading:
                continue
            unwanted = [one for one in self._held if one not in keys and one not in keep]
            if len(self._held) + len(self.reading) >= self.most:
                if not unwanted:
                    return
                self._held.remove(self._rng.choice(unwanted))
            self.reading.append(key)

    def tick(self, *, all_: bool = False) -> None:
        """Some of what is being read is there."""
        while self.reading and (all_ or self._rng.random() < 0.5):
            self._held.append(self.reading.pop(0))
            self._world.tally["adapters read"] += 1

    def place(self, swaps: Sequence[tuple[int, str]]) -> None:
        for slot, key in swaps:
            self.inside[slot] = key
            self._world.tally["swaps"] += 1

    def forget(self, key: str) -> None:
        self._held = [one for one in self._held if one != key]
        self.reading = [one for one in self.reading if one != key]
