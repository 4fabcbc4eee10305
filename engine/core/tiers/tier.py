"""One tier: slots of a size, each with a block under its key. Free + cached + used = total, as on the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.core.block_pool import BlockPool


class Tier:
    """A *used* slot is being copied to or from; what is *cached* can be found, and is evicted in the order of
    ``EvictionOrder`` when a slot is wanted and none is free."""

    def __init__(self, slots: int) -> None:
        self.pool = BlockPool(slots)
        self.pool.on_evict = self._evict
        self.evicted = 0
        self._slots: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: bytes) -> bool:
        return key in self._slots

    def find(self, key: bytes) -> int | None:
        return self._slots.get(key)

    def reserve(self) -> int | None:
        """A slot to copy to, which something may be evicted for; ``None`` if all are being copied."""
        return self.pool.allocate(1)[0] if self.pool.available else None

    def keep(self, entries: Sequence[tuple[bytes, int]], weight: float) -> None:
        """(key, reserved slot): they have their content now, each block after its parent."""
        slots = []
        for key, slot in entries:
            if key in self._slots:
                # Somebody else was as quick.
                self.pool.release((slot,))
                continue
            self._slots[key] = slot
            self._keys[slot] = key
            slots.append(slot)
        self.pool.release(slots, keep=True, weight=weight)

    def give_back(self, slot: int) -> None:
        """A reserved slot got no content."""
        self.pool.release((slot,))

    def hold(self, key: bytes) -> int:
        """Its slot, which is not evicted until ``let_go``. Raises ``KeyError``."""
        slot = self._slots[key]
        self.pool.share((slot,))
        return slot

    def let_go(self, slot: int, weight: float) -> None:
        if slot in self._keys:
            self.pool.release((slot,), keep=True, weight=weight)
        else:
            self.pool.release((slot,))

    def touch(self, keys: Iterable[bytes], weight: float) -> None:
        """They were used until now: keys of a chain, each block after its parent."""
        slots = [slot for key in keys if (slot := self._slots.get(key)) is not None]
        self.pool.share(slots)
        self.pool.release(slots, keep=True, weight=weight)

    def drop(self, key: bytes) -> None:
        """Its content is of no use."""
        slot = self._slots.pop(key, None)
        if slot is None:
            return
        del self._keys[slot]
        if self.pool.is_cached(slot):
            self.pool.discard(slot)

    def fill(self, entries: Iterable[tuple[int, bytes]]) -> None:
        """(slot, key): what was there before the start, those to be evicted first at first. All slots are free."""
        found = dict(entries)
        unused = set(self.pool.allocate(self.pool.total)) - found.keys()
        self.pool.release(sorted(unused, reverse=True))
        for slot, key in found.items():
            self.keep([(key, slot)], 1.0)

    def check_integrity(self, used: int) -> None:
        """Raises ``AssertionError`` unless slots and keys agree, and ``used`` slots are being copied."""
        self.pool.check_integrity()
        if {slot: key for key, slot in self._slots.items()} != self._keys:
            raise AssertionError("the registry by key and the one by slot differ")
        cached = sum(self.pool.is_cached(slot) for slot in self._keys)
        if cached != self.pool.cached:
            raise AssertionError(f"{self.pool.cached - cached} cached slots have no key")
        if any(not self.pool.is_cached(slot) and not self.pool.holders(slot) for slot in self._keys):
            raise AssertionError("a slot has a key, and is free")
        if self.pool.used != used:
            raise AssertionError(f"{self.pool.used} slots are in use, of which {used} are being copied")

    def _evict(self, slot: int) -> None:
        del self._slots[self._keys.pop(slot)]
        self.evicted += 1
