"""How many blocks a request needs: in each group of layers, for all its tokens or for those of a sliding window.

After ``computed`` tokens the next one sees, through a window, itself and the ``window - 1`` before it: blocks that end
before these are *behind* the window, and nothing reads them again.
"""

from __future__ import annotations

from collections.abc import Sequence


class BlockDemand:
    def __init__(
        self, windows: Sequence[int | None] = (None,), block_size: int = 16, step_tokens: int = 1
    ) -> None:
        """``windows``: each group's, those without one first. ``step_tokens``: most tokens of a request in a step."""
        self.windows = [window for window in windows if window is not None]
        self.groups = len(windows)
        self.full = self.groups - len(self.windows)
        """Groups whose layers see all tokens."""
        if list(windows) != [*[None] * self.full, *self.windows]:
            raise ValueError(f"groups without a window come first, not {list(windows)}")
        if self.groups < 1 or any(window < 1 for window in self.windows):
            raise ValueError(f"there must be a group, and windows of one token at least, not {list(windows)}")
        self.block_size = block_size
        self.spans = [-(-(window - 1) // block_size) for window in self.windows]
        """Of each window, the blocks before a block's beginning that the first token of this one sees."""
        self._reserves = [-(-(window - 1 + step_tokens) // block_size) + 1 for window in self.windows]
        """Of each window, the blocks that a request holds at most: the window before a step, and the step."""

    def count(self, length: int) -> int:
        """Blocks of ``length`` tokens in one group."""
        return -(-length // self.block_size)

    def behind(self, index: int, computed: int) -> int:
        """Blocks behind the window ``index`` after so many tokens."""
        return max(0, computed + 1 - self.windows[index]) // self.block_size

    def next_behind(self, index: int, behind: int) -> int:
        """Tokens that must be computed before more than ``behind`` blocks are behind the window."""
        return (behind + 1) * self.block_size + self.windows[index] - 1

    def reach(self, index: int, behind: int, length: int) -> int:
        """Blocks up to which a table in a window's group goes, those ``behind`` included, for ``length`` tokens."""
        return min(self.count(length), behind + self._reserves[index])

    def of(self, length: int) -> int:
        """Blocks that a request of ``length`` tokens holds at most, in all groups."""
        count = self.count(length)
        return self.full * count + sum(min(count, reserve) for reserve in self._reserves)

    def more(self, length: int, depth: int) -> int:
        """Blocks to be allocated for ``length`` tokens of which the first ``depth`` blocks are in the cache, as far as
        they are seen."""
        count = self.count(length)
        needed = self.full * (count - depth)
        for span, reserve in zip(self.spans, self._reserves, strict=True):
            needed += min(count, max(0, depth - span) + reserve) - depth
        return needed

    def longest(self, blocks: int, limit: int) -> int:
        """Tokens, up to ``limit``, of the longest request that ``blocks`` are enough for."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.of(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low
