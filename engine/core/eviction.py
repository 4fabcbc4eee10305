"""Which cached block is evicted first: the least recently used, weighted."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence

_LIGHTEST, _HEAVIEST = 0.25, 64.0


class EvictionOrder:
    """Time is counted in blocks handed out. A block of weight ``w``, last used at ``t``, expires at
    ``t + w * total``, and whichever expires first is evicted first, expired already or not.

    So for weights ``W > w``: a block of weight ``W`` outlives all blocks of weight ``w`` that were last used less than
    ``(W - w) * total`` after it. And nobody starves: once nobody has used it while more than ``(W - w) * total``
    blocks were handed out, it goes before every block of weight ``w`` that was used since. Weights are rounded to
    powers of √2 from 1/4 to 64, so what nobody uses is in nobody's way for more than ``64 * total`` blocks, and each
    weight has a queue of its own that is in order by itself: eviction looks at the head of each, at most 17.

    A pinned block has a queue of its own, whose blocks go when all others are empty.

    A block that several weights used keeps the largest until it has expired. Whoever uses a block uses its parent
    too, so a parent never expires before its children; where both were let go at once, the child has to be added
    first.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._now = 0
        self._queues: dict[float, OrderedDict[int, float]] = {}
        """By weight: blocks and when they expire, soonest first."""
        self._weights = [0.0] * total
        self._expiries = [-1.0] * total
        self._unpinned: dict[int, tuple[float, float]] = {}
        """Of pinned blocks, weight and expiry as if they were not."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for queue in self._queues.values():
            yield from queue

    def __contains__(self, block: int) -> bool:
        queue = self._queues.get(self._weights[block])
        return queue is not None and block in queue

    def advance(self, blocks: int) -> None:
        """So many were handed out."""
        self._now += blocks

    def use(self, block: int, weight: float) -> None:
        """It was used until now, by someone of a weight that was rounded by ``round_weight``."""
        if block in self._unpinned:
            known, expiry = self._unpinned[block]
            weight = max(weight, known) if expiry >= self._now else weight
            self._unpinned[block] = weight, self._now + weight * self._total
            return
        if self._expiries[block] >= self._now:
            weight = max(weight, self._weights[block])
        self._weights[block] = weight
        self._expiries[block] = self._now + weight * self._total

    def add(self, block: int) -> None:
        """Nobody holds it any more; it was ``use``d just now."""
        weight = self._weights[block]
        queue = self._queues.get(weight)
        if queue is None:
            queue = self._queues[weight] = OrderedDict()
        queue[block] = self._expiries[block]
        self._count += 1

    def remove(self, block: int) -> None:
        """Someone holds it again."""
        del self._queues[self._weights[block]][block]
        self._count -= 1

    def forget(self, block: int) -> None:
        """Its content is gone, and with it what it weighed."""
        self._expiries[block] = -1.0
        self._unpinned.pop(block, None)

    def pin(self, block: int) -> None:
        """Someone holds it. Until it is unpinned or forgotten it goes after all that are not pinned."""
        if not self.is_pinned(block):
            self._unpinned[block] = self._weights[block], self._expiries[block]
            self._weights[block] = self._expiries[block] = math.inf

    def unpin(self, blocks: Sequence[int], above: Sequence[int] = ()) -> None:
        """Those of a chain, each after its parent: as if they, and those ``above`` them, which stay pinned, had been
        used until now."""
        most = math.inf
        weights = []
        for block in blocks:
            most = min(most, max(self._unpinned.pop(block)[0], _LIGHTEST))
            weights.append(most)
        for block in above if weights else ():
            self.use(block, weights[0])
        # The child first.
        for block, weight in zip(reversed(blocks), reversed(weights), strict=True):
            here = block in self
            if here:
                self.remove(block)
            self._weights[block], self._expiries[block] = weight, self._now + weight * self._total
            if here:
                self.add(block)

    def is_pinned(self, block: int) -> bool:
        return block in self._unpinned

    def pop(self) -> int:
        """Takes out the block that goes first."""
        soonest, first = math.inf, None
        for queue in self._queues.values():
            if queue:
                expiry = next(iter(queue.values()))
                if expiry < soonest or first is None:
                    soonest, first = expiry, queue
        if first is None:
            raise ValueError("no block is cached")
        block, _ = first.popitem(last=False)
        self._count -= 1
        self.forget(block)
        return block


def round_weight(weight: float) -> float:
    """The nearest power of √2 from 1/4 to 64."""
    if not weight > _LIGHTEST:
        return _LIGHTEST
    return _HEAVIEST if weight >= _HEAVIEST else float(2.0 ** (round(2 * math.log2(weight)) / 2))
