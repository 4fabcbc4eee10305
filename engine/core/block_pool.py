"""Reference counts of the KV cache's blocks: free + cached + used = total, always."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from engine.core.eviction import EvictionOrder, round_weight

GONE = -1
"""In the place of a block that fell behind a sliding window, and was released or evicted."""


class BlockPool:
    """Hands out block numbers 0 … total - 1.

    A *used* block has one reference per request that holds it. When the last is released it becomes *free*, or
    *cached* if its content is worth keeping: a cached block can be shared again at no cost, and is evicted when no
    block is free, in the order of ``EvictionOrder``.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool needs at least one block, not {total}")
        self.total = total
        self.on_evict: Callable[[int], None] | None = None
        """Called with each cached block that is evicted."""
        self._free = list(range(total - 1, -1, -1))
        self._cached = EvictionOrder(total)
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

    def holders(self, block: int) -> int:
        """How many hold it: 0 if it is free or cached."""
        return self._references[block]

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def allocate(self, count: int) -> list[int]:
        """``count`` blocks with one reference each. Raises ``ValueError`` if fewer are available."""
        if count > self.available:
            raise ValueError(f"{count} blocks wanted, {self.available} available")
        blocks = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block = self._cached.pop()
                if self.on_evict is not None:
                    self.on_evict(block)
            self._references[block] = 1
            blocks.append(block)
        self._cached.advance(count)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference to each. Raises ``ValueError`` for a free block: its content is gone."""
        references, cached = self._references, self._cached
        for block in blocks:
            if references[block] == 0:
                if block not in cached:
                    raise ValueError(f"block {block} is free")
                cached.remove(block)
            references[block] += 1

    def release(self, blocks: Sequence[int], *, keep: bool = False, weight: float = 1.0) -> None:
        """One reference less to each, the last of ``blocks`` first. ``keep`` caches those that reach zero, for a time
        that grows with the ``weight``."""
        references, cached = self._references, self._cached
        weight = round_weight(weight)
        for block in reversed(blocks):
            count = references[block]
            if count == 0:
                raise ValueError(f"block {block} is not in use")
            references[block] = count - 1
            if keep:
                cached.use(block, weight)
                if count == 1:
                    cached.add(block)
            elif count == 1:
                cached.forget(block)
                self._free.append(block)

    @property
    def pinned(self) -> set[int]:
        return {block for block in range(self.total) if self._cached.is_pinned(block)}

    def pin(self, block: int) -> None:
        """One that is held will be evicted when nothing else is left; until ``unpin``, or until its content is gone."""
        self._cached.pin(block)

    def unpin(self, blocks: Sequence[int], above: Sequence[int] = ()) -> None:
        """Those of a chain, each after its parent; ``above``: its beginning, which stays pinned."""
        self._cached.unpin(blocks, above)

    def discard(self, block: int) -> None:
        """Frees a cached block whose content is invalid."""
        self._cached.remove(block)
        self._cached.forget(block)
        self._free.append(block)

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` unless every block is exactly one of free, cached and used."""
        free, cached = set(self._free), set(self._cached)
        used = {block for block, count in enumerate(self._references) if count > 0}
        if len(free) != len(self._free):
            raise AssertionError("a block is free twice")
        if len(cached) != len(self._cached):
            raise AssertionError("a block is cached twice")
        if min(self._references) < 0:
            raise AssertionError("a block has a negative reference count")
        if len(free) + len(cached) + len(used) != self.total or free | cached | used != set(
            range(self.total)
        ):
            raise AssertionError(
                f"free {sorted(free)}, cached {sorted(cached)} and used {sorted(used)} "
                f"are not {self.total} blocks in three parts"
            )
