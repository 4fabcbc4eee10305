"""The events of one publisher, brought into order: what was missed is asked for again, or all is forgotten.

Batches are numbered. A number that is left out is a gap: the publisher may have removed what still counts as held. It
is asked to repeat its batches, where it has a port for that; until it has, those that come are kept. What it cannot
repeat has to be proven anew (``ReplicaBlocks.forget``).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.held_prefixes.kv_events import Batch, Unreadable, read_batch
from gateway.held_prefixes.replica_blocks import ReplicaBlocks

PATIENCE = 5.0
"""Seconds for the next batch of those that are repeated."""
MOST_KEPT = 10_000
"""Batches that are kept meanwhile."""
MOST_KEPT_BYTES = 64 * 2**20

Ask = Callable[[int], object]
"""Have the publisher repeat its batches from this number on."""


@dataclass(slots=True)
class Counts:
    """Of one publisher, since it is followed."""

    batches: int = 0
    events: int = 0
    gaps: int = 0
    """How often something was missed for good."""
    repeated: int = 0
    """How often it was asked to repeat."""
    unreadable: int = 0


class Feed:
    def __init__(
        self, blocks: ReplicaBlocks, ask: Ask | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``ask``: None where it has no port for that."""
        self.blocks = blocks
        self.counts = Counts()
        self.connected = False
        self._ask = ask
        self._clock = clock
        self._next: int | None = None
        """The number of the next batch; None: whichever comes."""
        self._time = float("-inf")
        """Of the last batch."""
        self._kept: deque[tuple[int, bytes]] | None = None
        """Batches that came while others are repeated; None while none are."""
        self._kept_bytes = 0
        self._until = 0.0

    @property
    def catching_up(self) -> bool:
        return self._kept is not None

    def connect(self) -> None:
        """A connection stands. What was published before is asked for, from the beginning."""
        self.connected = True
        self._begin(None)
        if self._ask is not None:
            self._next = 0
            self._repeat(0)

    def disconnect(self) -> None:
        """Nobody knows what it does now."""
        self.connected = False
        self._begin(None)

    def received(self, frames: list[bytes]) -> None:
        """A message of the publisher: topic, number, batch. Raises nothing, whatever it is."""
        if len(frames) != 3 or len(frames[1]) != 8:
            self.counts.unreadable += 1
            return
        sequence, payload = int.from_bytes(frames[1], "big"), frames[2]
        if self._kept is None:
            self._take(sequence, payload, may_ask=True)
            return
        self._kept.append((sequence, payload))
        self._kept_bytes += len(payload)
        if len(self._kept) > MOST_KEPT or self._kept_bytes > MOST_KEPT_BYTES:
            self._caught_up()

    def repeated(self, frames: list[bytes]) -> None:
        """A message of those that were asked for: number, batch; the last one has no batch."""
        if self._kept is None:
            return
        if len(frames) < 2 or len(frames[-2]) != 8:
            self.counts.unreadable += 1
            return
        payload = frames[-1]
        if not payload or frames[-2] == b"\xff" * 8:
            self._caught_up()
            return
        self._until = self._clock() + PATIENCE
        self._take(int.from_bytes(frames[-2], "big"), payload, may_ask=False)

    def look(self) -> None:
        """To be called now and then: whether it repeats no more."""
        if self._kept is not None and self._clock() > self._until:
            self._caught_up()

    def _begin(self, following: int | None) -> None:
        self.blocks.forget()
        self._next, self._time = following, float("-inf")
        self._kept = None

    def _repeat(self, sequence: int) -> None:
        if self._ask is not None:
            self.counts.repeated += 1
            self._kept, self._kept_bytes = deque(), 0
            self._until = self._clock() + PATIENCE
            self._ask(sequence)

    def _caught_up(self) -> None:
        kept, self._kept = self._kept or (), None
        for sequence, payload in kept:
            self._take(sequence, payload, may_ask=False)

    def _take(self, sequence: int, payload: bytes, *, may_ask: bool) -> None:
        try:
            batch = read_batch(payload)
        except Unreadable:
            self.counts.unreadable += 1
            self._lost()
            self._next = sequence + 1
            return
        if self._next is not None and sequence < self._next:
            if batch.time <= self._time:
                return  # it is known
            # The publisher was started again behind something that kept the connection.
            self._begin(0)
        if self._next is not None and sequence > self._next:
            if may_ask and self._ask is not None:
                self._repeat(self._next)
                self.received([b"", sequence.to_bytes(8, "big"), payload])
                return
            self._lost()
        self._next, self._time = sequence + 1, batch.time
        self._apply(batch)

    def _lost(self) -> None:
        self.counts.gaps += 1
        self.blocks.forget()

    def _apply(self, batch: Batch) -> None:
        self.counts.batches += 1
        self.counts.events += len(batch.events)
        for event in batch.events:
            try:
                self.blocks.apply(event)
            except (OverflowError, TypeError, ValueError):
                self.counts.unreadable += 1
                self._lost()
