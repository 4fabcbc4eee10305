"""Ends of prompts and answers that the device has evicted, and a further tier may still have: for the digest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from engine.core.prefix_cache import Node

MOST = 1024
"""Of which those evicted last are remembered."""


class _End(NamedTuple):
    key: bytes
    """On the device, as a digest reports it."""
    depth: int
    adapter: str | None


class EvictedEnds:
    def __init__(self) -> None:
        self._ends: OrderedDict[bytes, _End] = OrderedDict()
        """By their keys in the tiers, the last evicted last."""

    def add(self, key: bytes, node: Node) -> None:
        """``key``: the node's in the tiers."""
        self._ends[key] = _End(node.key, node.depth, node.adapter)
        self._ends.move_to_end(key)
        if len(self._ends) > MOST:
            self._ends.popitem(last=False)

    def forget(self, adapter: str) -> None:
        for key in [key for key, end in self._ends.items() if end.adapter == adapter]:
            del self._ends[key]

    def found(self, tier_of: Callable[[bytes, bytes], str | None], limit: int) -> list[tuple[int, int, str]]:
        """(key, blocks, tier), those evicted last at first. ``tier_of`` takes both keys, and says ``None`` where it is
        gone; such ones are forgotten."""
        found: list[tuple[int, int, str]] = []
        for key, end in reversed(list(self._ends.items())):
            if len(found) == limit:
                break
            if (tier := tier_of(key, end.key)) is None:
                del self._ends[key]
            else:
                found.append((int.from_bytes(end.key, "little"), end.depth, tier))
        return found
