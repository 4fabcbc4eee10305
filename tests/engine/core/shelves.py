"""Host memory and a disk beside ``Device``: they know what every block stands for, take their time, and fail."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from engine.core.tiers.copier import Copied
from engine.core.tiers.tier import Tier
from engine.core.tiers.tiered_cache import TierSet

if TYPE_CHECKING:
    from tests.engine.core.world import World


class Shelves:
    """A copier. What is under way is done at some time, in any order of reads and writes."""

    block_bytes = 64

    def __init__(self, rng: Random, world: World) -> None:
        self._rng = rng
        self._world = world
        slots, places = rng.choice((1, 3, 10, 40, 200)), rng.choice((0, 2, 30, 300))
        self.host: list[list[int]] = [[] for _ in range(slots)]
        self.disk: list[list[int]] = [[] for _ in range(places)]
        self.load_bandwidth = rng.choice((0.0, 1e3, 1e9))
        self.read_bandwidth = rng.choice((0.0, 1e3, 1e9))
        self.tiers = TierSet(Tier(slots), Tier(places) if places else None, self)
        self._under_way: list[Copied] = []
        self._done: list[Copied] = []
        self._known: dict[bytes, list[int]] = {}
        """By key in the tiers, what the block must hold."""

    def save(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._world.device.settle()
        prefixes = self._world.scheduler.prefixes
        assert prefixes is not None
        for block, slot in pairs:
            assert all(one.slot != slot for one in self._under_way)
            node = prefixes._by_block[block]
            self._known[node.tier_key] = self._world.content(node)
            self.host[slot] = list(self._world.device.cache[block])

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._world.device.settle()
        self._world.tally["loaded"] += len(pairs)
        for slot, block in pairs:
            assert all(one.slot != slot for one in self._under_way if one.read)
            assert self._world.scheduler.pool.holders(block) == 1
            self._world.device.cache[block] = list(self.host[slot])

    def write(self, key: bytes, slot: int, place: int, depth: int) -> None:
        assert depth > 0
        self._under_way.append(Copied(key, slot, place, read=False))

    def read(self, key: bytes, place: int, slot: int) -> None:
        self._under_way.append(Copied(key, slot, place, read=True))

    def copied(self) -> list[Copied]:
        while self._under_way and self._rng.random() < 0.7:
            self._finish(self._under_way.pop(0))
        done, self._done = self._done, []
        return done

    def wait(self, seconds: float) -> None:
        while self._under_way:
            self._finish(self._under_way.pop(0))

    def close(self) -> None:
        self.wait(0.0)

    def _finish(self, one: Copied) -> None:
        good = self._rng.random() < 0.9
        if one.read:
            self.host[one.slot] = list(self.disk[one.place]) if good else [-1]
            self._world.tally["read" if good else "corrupt"] += 1
        else:
            # Half a block is written, and it is told.
            self.disk[one.place] = list(self.host[one.slot]) if good else [-1]
            self._world.tally["written" if good else "unwritten"] += 1
        self._done.append(Copied(one.key, one.slot, one.place, one.read, good))

    def check(self) -> None:
        """Raises ``AssertionError`` unless what can be found in a tier is what it stands for."""
        for tier, contents in ((self.tiers.host, self.host), (self.tiers.disk, self.disk)):
            if tier is not None:
                for key, slot in tier._slots.items():
                    assert contents[slot] == self._known[key]
