"""Who is next at a model: each tenant in its turn, by what its texts cost, however many of them wait.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996): each tenant's line has a start, which moves on by the cost
of what it is served; the least start is next. A tenant that was idle starts where the others are, so that it saves
nothing up.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Tenant(Generic[T]):
    start: float
    waiting: OrderedDict[T, int] = field(default_factory=OrderedDict)
    """What waits, and its cost."""


class TenantQueue(Generic[T]):
    """Items are hashable, and of one tenant each."""

    def __init__(self) -> None:
        self._lines: dict[str, _Tenant[T]] = {}
        self._virtual = 0.0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def length(self, tenant: str) -> int:
        line = self._lines.get(tenant)
        return len(line.waiting) if line is not None else 0

    def push(self, tenant: str, item: T, cost: int) -> None:
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = _Tenant(self._virtual)
        line.waiting[item] = max(1, cost)
        self._length += 1

    def head(self) -> T:
        """Who is next, and stays. Raises ``IndexError`` where nobody waits."""
        return next(iter(self._lines[self._next()].waiting))

    def pop(self) -> T:
        """Who is next, and leaves. Raises ``IndexError`` where nobody waits."""
        tenant = self._next()
        line = self._lines[tenant]
        item, cost = line.waiting.popitem(last=False)
        self._virtual = line.start
        line.start += cost
        self._left(tenant)
        return item

    def remove(self, tenant: str, item: T) -> None:
        """It does not want to wait any longer."""
        del self._lines[tenant].waiting[item]
        self._left(tenant)

    def crowd_out(self, tenant: str, wanted: int) -> T | None:
        """The newest item of the longest line, which leaves; None where ``tenant``'s own would be as long then."""
        longest = max(self._lines, key=self.length, default=None)
        if longest is None or self.length(longest) <= self.length(tenant) + wanted:
            return None
        item, _ = self._lines[longest].waiting.popitem()
        self._left(longest)
        return item

    def clear(self) -> None:
        self._lines.clear()
        self._length = 0

    def _next(self) -> str:
        if not self._lines:
            raise IndexError("nobody waits")
        return min(self._lines, key=lambda name: self._lines[name].start)

    def _left(self, tenant: str) -> None:
        self._length -= 1
        line = self._lines[tenant]
        if not line.waiting:
            # Leaving and coming back is no way to the front: everybody starts where this one stopped.
            self._virtual = max(self._virtual, min(self._starts(but=tenant), default=line.start))
            del self._lines[tenant]

    def _starts(self, but: str) -> list[float]:
        return [line.start for name, line in self._lines.items() if name != but]
