"""Who owns which block of the KV cache: free + cached + used = total, always."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Hands out block numbers 0 … total - 1.

    A *used* block has one reference per request that holds it. When the last one lets go it becomes *free*, or
    *cached* if its content is worth keeping: a cached block can be shared again at no cost, and is taken back,
    least recently used first, when no block is free.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool needs at least one block, not {total}")
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * total

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def used(self) -> int:
        return self.total - self.available

    @property
    def available(self) -> int:
        """Blocks that ``allocate`` can hand out now."""
        return len(self._free) + len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """``count`` blocks with one reference each. Raises ``ValueError`` if fewer are available."""
        if count > self.available:
            raise ValueError(f"{count} blocks wanted, {self.available} available")
        blocks = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._cached.popitem(last=False)[0]
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """One more reference to each. Raises ``ValueError`` for a free block: its content is gone."""
        for block in blocks:
            if self._references[block] == 0:
                if block not in self._cached:
                    raise ValueError(f"block {block} is free")
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int], *, keep: bool = False) -> None:
        """One reference less to each; ``keep`` caches those that nobody holds any more."""
        for block in blocks:
            if self._references[block] == 0:
                raise ValueError(f"block {block} is not in use")
            self._references[block] -= 1
            if self._references[block] == 0:
                if keep:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` unless every block is exactly one of free, cached and used."""
        free, cached = set(self._free), set(self._cached)
        used = {block for block, count in enumerate(self._references) if count > 0}
        if len(free) != len(self._free):
            raise AssertionError("a block is free twice")
        if min(self._references) < 0:
            raise AssertionError("a block has fewer than no references")
        if len(free) + len(cached) + len(used) != self.total or free | cached | used != set(
            range(self.total)
        ):
            raise AssertionError(
                f"free {sorted(free)}, cached {sorted(cached)} and used {sorted(used)} "
                f"are not {self.total} blocks in three parts"
            )
