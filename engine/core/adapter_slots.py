"""Which LoRA adapters have the device's slots, where there are more adapters than slots.

The adapters that open requests ask for have an order: that of the first request of each by rank, running or waiting.
The first of them that are in host memory, as many as there are slots, are *entitled*: only their requests are admitted.
An entitled one that has no slot gets one that is free, or whose adapter no running request uses and that is not
entitled itself: of these the least recently used, weighted. So an adapter in use goes on taking in requests while one
of them is among the first, and no longer: then its slot becomes free as its requests end. Whoever waits comes first
after those that run and those that were admitted beside them; nobody starves, and requests of an adapter that is there
already are admitted together.

What is not in host memory is read from the disk meanwhile (``AdapterMemory``), and holds nobody up. Preemption is for
sequences and blocks: no request loses its slot to another adapter.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.core.eviction import round_weight
from engine.core.request import Request
from engine.core.waiting_queue import RANK


class AdapterMemory(Protocol):
    """Copies in host memory, from which slots are filled."""

    most: int
    """Adapters that it can have; as many as there are slots at least."""

    def has(self, key: str) -> bool: ...

    def want(self, keys: Sequence[str], keep: Collection[str]) -> None:
        """``keys``, at most ``most``, are asked for, the first before the others: what is not there is read, in place
        of what is neither wanted nor to be kept."""


@dataclass(frozen=True, slots=True)
class AdapterState:
    """Of the slots and of host memory, for metrics."""

    used: int = 0
    """Slots with an adapter."""
    held: int = 0
    """Adapters in host memory."""
    known: int = 0
    """Adapters that requests can ask for."""
    waiting: int = 0
    """Requests that wait, and whose adapter has no slot."""
    hits: int = 0
    """Requests admitted since the start whose adapter had a slot,"""
    swaps: int = 0
    """and those for which it was copied into one."""
    reads: int = 0
    """Adapters read from the disk since the start, those loaded for the first time not counted."""


class AdapterSlots:
    def __init__(self, slots: int, memory: AdapterMemory, loaded: Sequence[str] = ()) -> None:
        """``loaded``: what is in the first slots already."""
        self.hits = 0
        self.swaps = 0
        self._memory = memory
        self._keys: list[str | None] = [*loaded, *[None] * (slots - len(loaded))]
        self._places = {key: slot for slot, key in enumerate(loaded)}
        self._entitled: set[str] = set()
        self._busy: set[str | None] = set()
        """Adapters of running requests, as of ``begin``."""
        self._expiry = [0.0] * slots
        """Which slot is taken first: time is counted in swaps, as ``EvictionOrder`` counts it in blocks."""
        self._pending: list[tuple[int, str]] = []
        """For the next plan."""

    def __len__(self) -> int:
        """Slots with an adapter."""
        return len(self._places)

    def __contains__(self, key: str | None) -> bool:
        return key in self._places

    def begin(self, running: Iterable[Request], waiting: Iterable[Request]) -> None:
        """Before a step is planned: decides whose requests may be admitted to it. Both are by rank."""
        running = list(running)
        self._busy = {request.adapter for request in running}
        for _, key in list(self._pending):
            if key not in self._busy:
                # Whom it was for was aborted: host memory need not keep it.
                self._release(key)
        wanted: dict[str, None] = {}
        for request in heapq.merge(running, waiting, key=RANK):
            if request.adapter is not None and request.adapter not in wanted:
                wanted[request.adapter] = None
                if len(wanted) == self._memory.most:
                    break
        self._memory.want(list(wanted), [key for _, key in self._pending])
        self._entitled = set()
        for key in wanted:
            if len(self._entitled) == len(self._keys):
                break
            if key in self._places or self._memory.has(key):
                self._entitled.add(key)

    def admits(self, key: str | None) -> bool:
        """Whether a request with this adapter (``None``: without one) may be admitted now."""
        if key is None:
            return True
        return key in self._entitled and (key in self._places or self._victim() is not None)

    def take(self, key: str, weight: float) -> None:
        """For a request that is admitted: ``admits`` said so."""
        slot = self._places.get(key)
        if slot is None:
            slot = self._victim()
            if slot is None:
                raise ValueError(f"there is no slot for adapter {key}")
            before = self._keys[slot]
            if before is not None:
                self._release(before)
            self._keys[slot], self._places[key] = key, slot
            self._pending.append((slot, key))
            self.swaps += 1
        else:
            self.hits += 1
        self._expiry[slot] = self.swaps + round_weight(weight) * len(self._keys)

    def take_swaps(self) -> list[tuple[int, str]]:
        """For the plan: what is to be copied where before anything is computed."""
        swaps, self._pending = self._pending, []
        return swaps

    def undo(self, swaps: Sequence[tuple[int, str]]) -> None:
        """The plan that had them was not launched: the next one has them again."""
        self._pending = [(slot, key) for slot, key in swaps if self._keys[slot] == key] + self._pending

    def forget(self, key: str) -> None:
        """It was unloaded: no open request uses it."""
        if key in self._places:
            self._release(key)
        self._entitled.discard(key)

    def check_integrity(self, running: Iterable[Request]) -> None:
        """Raises ``AssertionError`` unless all that run have a slot, and slots and adapters agree."""
        known = {key: slot for slot, key in enumerate(self._keys) if key is not None}
        if known != self._places:
            raise AssertionError("slots and adapters disagree")
        if any(self._keys[slot] != key for slot, key in self._pending):
            raise AssertionError("a copy is due for a slot that another adapter has")
        for request in running:
            if request.adapter is not None and request.adapter not in self._places:
                raise AssertionError(f"request {request.id} runs without a slot for its adapter")

    def _release(self, key: str) -> None:
        slot = self._places.pop(key)
        self._keys[slot] = None
        self._pending = [one for one in self._pending if one[0] != slot]

    def _victim(self) -> int | None:
        """The slot that is taken next; ``None`` if none can be."""
        best: int | None = None
        for slot, key in enumerate(self._keys):
            if key is None:
                return slot
            if key in self._busy or key in self._entitled:
                continue
            if best is None or self._expiry[slot] < self._expiry[best]:
                best = slot
        return best
