"""Which tenants metrics tell apart: none, or so many."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from gateway.observe.prometheus.buffers import OTHER

MAX_TENANTS = 100
UNTOLD = ""
"""The label of everybody where tenants are not told apart."""


class TenantLabels:
    """The first ``limit`` tenants have labels of their own, those that the policy names before those that only come.

    A tenant that has a label keeps it for as long as the process, so that its series have no gaps.
    """

    def __init__(self, *, by_default: bool = False) -> None:
        """``by_default``: what holds where the policy is silent, and before there is one."""
        self._by_default = by_default
        self._limit = 0
        self.enabled = False
        """Whether tenants are told apart."""
        self._reserved: set[str] = set()
        self._labelled: set[str] = set()
        self.update(None)

    def update(self, told: bool | None, limit: int = MAX_TENANTS, named: Iterable[str] = ()) -> None:
        """Apply a policy's ``metrics``; ``named`` are its tenants, in its order."""
        self._limit = limit if (self._by_default if told is None else told) else 0
        self.enabled = self._limit > 0
        places = max(0, self._limit - len(self._labelled))
        fresh = (name for name in dict.fromkeys(named) if name not in self._labelled)
        self._reserved = set(islice(fresh, places))

    def of(self, name: str) -> str:
        """The value of the label ``tenant``: empty without a tenant, or where they are not told apart."""
        if not self._limit or not name:
            return UNTOLD
        if name in self._labelled:
            return name
        if name not in self._reserved and len(self._labelled) + len(self._reserved) >= self._limit:
            return OTHER
        self._reserved.discard(name)
        self._labelled.add(name)
        return name
