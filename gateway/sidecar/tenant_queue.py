"""A queue in which tenants take turns by the cost of their texts, however many each has queued.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996): each tenant's queue has a start tag, which advances by the
cost of what it is served; the least start tag is served next. An idle tenant resumes at the others' virtual time, so it
accumulates no credit.
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
    """Items and their costs."""


class TenantQueue(Generic[T]):
    """Items are hashable, and of one tenant each."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, _Tenant[T]] = {}
        self._virtual = 0.0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def length(self, tenant: str) -> int:
        own = self._by_tenant.get(tenant)
        return len(own.waiting) if own is not None else 0

    def push(self, tenant: str, item: T, cost: int) -> None:
        own = self._by_tenant.get(tenant)
        if own is None:
            own = self._by_tenant[tenant] = _Tenant(self._virtual)
        own.waiting[item] = max(1, cost)
        self._length += 1

    def head(self) -> T:
        """The next item, which stays. Raises ``IndexError`` if the queue is empty."""
        return next(iter(self._by_tenant[self._next()].waiting))

    def pop(self) -> T:
        """Remove the next item. Raises ``IndexError`` if the queue is empty."""
        tenant = self._next()
        own = self._by_tenant[tenant]
        item, cost = own.waiting.popitem(last=False)
        self._virtual = own.start
        own.start += cost
        self._left(tenant)
        return item

    def remove(self, tenant: str, item: T) -> None:
        """Remove an item that was cancelled."""
        del self._by_tenant[tenant].waiting[item]
        self._left(tenant)

    def evict(self, tenant: str, wanted: int) -> T | None:
        """Remove and return the newest item of the longest queue; None if ``tenant``'s own would then be as long."""
        longest = max(self._by_tenant, key=self.length, default=None)
        if longest is None or self.length(longest) <= self.length(tenant) + wanted:
            return None
        item, _ = self._by_tenant[longest].waiting.popitem()
        self._left(longest)
        return item

    def clear(self) -> None:
        self._by_tenant.clear()
        self._length = 0

    def _next(self) -> str:
        if not self._by_tenant:
            raise IndexError("the queue is empty")
        return min(self._by_tenant, key=lambda name: self._by_tenant[name].start)

    def _left(self, tenant: str) -> None:
        self._length -= 1
        own = self._by_tenant[tenant]
        if not own.waiting:
            # Leaving and coming back gains nothing: all others start where this tenant stopped.
            self._virtual = max(self._virtual, min(self._starts(but=tenant), default=own.start))
            del self._by_tenant[tenant]

    def _starts(self, but: str) -> list[float]:
        return [own.start for name, own in self._by_tenant.items() if name != but]
