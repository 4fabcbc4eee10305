"""Prompts that are kept for a time: evicted last, within a share of the blocks that tenants divide among them."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict
from dataclasses import dataclass

from engine.core.block_pool import BlockPool
from engine.core.prefix_cache import Node


@dataclass(slots=True, eq=False)
class _Pin:
    nodes: list[Node]
    tenant: str
    until: float


class Pins:
    """Pinned blocks without a holder count as available like others: when nothing else is left they are evicted, so a
    pin never keeps a request from running. Where the share is exceeded, the tenant that has most of it loses its oldest
    pin."""

    def __init__(self, pool: BlockPool, share: float) -> None:
        """``share``: of the pool's blocks, at most."""
        self.most = int(share * pool.total)
        self._pool = pool
        self._pins: dict[str, OrderedDict[Node, _Pin]] = {}
        """By tenant and last block; the one that was set last is the last."""
        self._times: list[tuple[float, int, _Pin]] = []
        """A heap by when they end, with those that were dropped before."""
        self._numbers = itertools.count()
        self._counts: Counter[Node] = Counter()
        """Pins of each block."""

    def __len__(self) -> int:
        """Blocks that are pinned."""
        return len(self._counts)

    def pin(self, node: Node, tenant: str, until: float) -> None:
        """The blocks up to ``node``, which someone holds; as many of the first ones as there may be."""
        nodes: list[Node] = []
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes = nodes[::-1][: self.most]
        if not nodes:
            return
        own = self._find(tenant, nodes[-1])
        if own is not None:
            # It is renewed, and no shorter than it was.
            until = max(until, own.until)
            self._drop(own)
        made = _Pin(nodes, tenant, until)
        for one in nodes:
            self._counts[one] += 1
            self._pool.pin(one.block)
        self._pins.setdefault(tenant, OrderedDict())[nodes[-1]] = made
        heapq.heappush(self._times, (until, next(self._numbers), made))
        self._clear()
        while len(self._counts) > self.most:
            richest = max(self._pins.values(), key=lambda pins: sum(len(one.nodes) for one in pins.values()))
            self._drop(next(iter(richest.values())))

    def expire(self, now: float) -> None:
        while self._times and self._times[0][0] <= now:
            pin = heapq.heappop(self._times)[2]
            if self._find(pin.tenant, pin.nodes[-1]) is pin:
                self._drop(pin)

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` unless those blocks are pinned, and only those, that some pin has."""
        counts = Counter(node for pins in self._pins.values() for pin in pins.values() for node in pin.nodes)
        if counts != self._counts:
            raise AssertionError("the count of pinned blocks is wrong")
        if len(counts) > self.most:
            raise AssertionError(f"{len(counts)} blocks are pinned, of {self.most} that may be")
        there = {node.block for node in counts if node.alive}
        # What somebody holds of an adapter that is gone is let go of by its holder.
        if not there <= self._pool.pinned or any(
            not self._pool.holders(one) for one in self._pool.pinned - there
        ):
            raise AssertionError("other blocks are pinned than those of pins")

    def _find(self, tenant: str, last: Node) -> _Pin | None:
        pins = self._pins.get(tenant)
        return pins.get(last) if pins is not None else None

    def _clear(self) -> None:
        """Of blocks that were evicted all the same."""
        if all(node.alive for node in self._counts):
            return
        for pin in [pin for pins in self._pins.values() for pin in pins.values()]:
            if not pin.nodes[-1].alive:
                self._drop(pin)

    def _drop(self, pin: _Pin) -> None:
        pins = self._pins[pin.tenant]
        del pins[pin.nodes[-1]]
        if not pins:
            del self._pins[pin.tenant]
        left, above = list[int](), list[int]()
        for node in pin.nodes:
            self._counts[node] -= 1
            if not self._counts[node]:
                del self._counts[node]
                if node.alive:
                    left.append(node.block)
            elif node.alive:
                above.append(node.block)
        self._pool.unpin(left, above)
