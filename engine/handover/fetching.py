"""The asking side in the engine's loop: which prompts are asked for, of whom, and what becomes of what came.

A prompt is asked for once. Whatever goes wrong, what came by then is used and the rest is computed here: an engine that
is gone costs a request time, never its answer. One that failed is left alone for a while, twice as long each time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.core.request import Request
from engine.core.tiers.remote import HandoverState
from engine.core.tiers.tiered_cache import TieredCache
from engine.handover.address import Address, parse_address
from engine.handover.links import Links, Refused, Transfer, is_unfit
from engine.handover.wire import BrokenFrame, CorruptFrame

log = logging.getLogger("engine.handover")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
"""Seconds for which an engine that failed is not asked, at first and at most."""
_SILENCE = 30.0
"""Seconds between two lines of the log about the same address."""
_MOST = 32
"""Transfers at once, each with a thread."""


@dataclass(slots=True, eq=False)
class Fetching:
    """What one request waits for."""

    transfer: Transfer
    keys: Sequence[bytes]
    weight: float
    block_size: int
    done: bool = False

    @property
    def computed(self) -> int:
        begin, size = self.transfer.first, self.block_size
        return max(0, (begin + self.transfer.arrived) * size - max(begin * size, self.transfer.cached))

    def cancel(self) -> None:
        self.transfer.cancel()


@dataclass(slots=True)
class _Source:
    """An engine that computes prompts for others."""

    address: Address
    under_way: int = 0
    failures: int = 0
    """In a row."""
    until: float = 0.0
    """It is not asked before,"""
    told: float = float("-inf")
    """and when the log had the last line about it."""


@dataclass(slots=True, eq=False)
class Fetcher:
    links: Links
    tiers: TieredCache
    state: HandoverState
    block_size: int
    least: int
    """Tokens of a prompt that must be missing for another engine to be asked."""
    always: Sequence[Address] = ()
    """Engines to ask where a request names none."""
    clock: Callable[[], float] = time.monotonic
    _sources: dict[str, _Source] = field(default_factory=dict)
    _active: list[Fetching] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return bool(self._active)

    def begin(self, request: Request, first: int, keys: Sequence[bytes]) -> Fetching | None:
        at, request.prefill_at = request.prefill_at, ""
        if request.started or (not at and not self.always):
            return None
        if request.id < 0:
            return None  # another engine asks for it: two that ask each other would hand it to and fro
        if len(keys) * self.block_size < self.least:
            self.state.short += 1
            return None
        source = self._choose(at)
        if source is None or len(self._active) >= _MOST:
            return None
        slots = self.tiers.loans.reserve(len(keys))
        if not slots:
            return None
        now = self.clock()
        transfer = Transfer(str(source.address), first, slots, now)
        self.links.start(source.address, self._order(request, first, len(slots), now), transfer)
        source.under_way += 1
        fetching = Fetching(transfer, keys, request.weight, self.block_size)
        self._active.append(fetching)
        return fetching

    def tick(self) -> None:
        if not self._active:
            return
        silent = self.clock() - 2 * self.links.timeout
        for one in self._active:
            if not one.done and one.transfer.heard < silent:
                # Its thread is in a call that does not end: the request goes on, the slots stay with the thread.
                one.done = True
                one.cancel()
                self._failed(self._sources[one.transfer.address], BrokenFrame("nothing came in time"))
        finished = [one for one in self._active if one.transfer.finished.is_set()]
        for one in finished:
            self._active.remove(one)
            self._take_in(one)

    def close(self) -> None:
        for one in self._active:
            one.cancel()
        self.links.close()

    def _order(self, request: Request, first: int, count: int, now: float) -> dict[str, Any]:
        return {
            "tokens": list(request.tokens),
            "first": first,
            "count": count,
            "priority": request.priority,
            "weight": request.weight,
            "tenant": request.tenant,
            "salt": request.salt.hex(),
            "shared": request.shared,
            "deadline": None if request.deadline is None else request.deadline - now,
        }

    def _take_in(self, one: Fetching) -> None:
        transfer, loans = one.transfer, self.tiers.loans
        filled, empty = [], list(transfer.slots[transfer.arrived :])
        for key, slot in zip(one.keys, transfer.slots[: transfer.arrived], strict=False):
            if self.tiers.is_reading(key):
                empty.append(slot)  # the disk had it, too, and is about to have it there
            else:
                filled.append((key, slot))
        loans.settle(filled, empty, one.weight)
        one.done = True
        self.state.fetched_blocks += transfer.arrived
        self.state.fetched_prompts += bool(transfer.arrived)
        source = self._sources[transfer.address]
        source.under_way -= 1
        if transfer.error is None:
            source.failures = 0
        elif not transfer.cancelled:
            self._failed(source, transfer.error)

    def _failed(self, source: _Source, error: Exception) -> None:
        now = self.clock()
        self.state.failed += 1
        self.state.corrupt += isinstance(error, CorruptFrame)
        if isinstance(error, Refused):
            source.until = now + _FIRST_PAUSE
        else:
            pause = _LONGEST_PAUSE if is_unfit(error) else _FIRST_PAUSE * 2**source.failures
            source.until = now + min(_LONGEST_PAUSE, pause)
            source.failures = min(source.failures + 1, 16)
        if now - source.told >= _SILENCE:
            source.told = now
            log.warning(
                "a prompt's KV blocks did not come from %s: %s; what is missing is computed here",
                source.address,
                error,
            )

    def _choose(self, at: str) -> _Source | None:
        """The one that the request names, else that with the fewest under way; ``None`` if it failed just now."""
        if at:
            try:
                found = [self._source(parse_address(at))]
            except ValueError as error:
                log.warning("a request names an engine that cannot be asked for its blocks: %s", error)
                return None
        else:
            found = [self._source(address) for address in self.always]
        now = self.clock()
        ready = [source for source in found if source.until <= now]
        return min(ready, key=lambda source: source.under_way, default=None)

    def _source(self, address: Address) -> _Source:
        return self._sources.setdefault(str(address), _Source(address))
