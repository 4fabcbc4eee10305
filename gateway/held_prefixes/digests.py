"""What bundled engines say that they hold: the keys of some prefixes, with each poll of their state.

A digest names the ends of prompts and answers, and where they diverged, and not all blocks before these: of a prompt's
keys the last one that is in it counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

STALE = 5.0
"""Seconds after which a digest counts no more."""
MOST = 4096
"""Of the keys of one; engines have 128."""


class Digests:
    """One worker's: each polls the engines itself."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wanted: Collection[str] = ()
        self._known: dict[str, tuple[float, int, Mapping[int, int]]] = {}

    def told(self, replica: str, state: Mapping[str, Any]) -> None:
        """``state``: the answer of ``/v1/engine/state``; what is no digest in it is left out."""
        if replica not in self._wanted:
            return
        cache, prefixes = state.get("kv_cache"), state.get("prefix_cache")
        size = cache.get("block_size") if isinstance(cache, Mapping) else None
        listed = prefixes.get("digest") if isinstance(prefixes, Mapping) else None
        if not isinstance(size, int) or size < 1 or not isinstance(listed, list):
            self._known.pop(replica, None)
            return
        keys: dict[int, int] = {}
        for one in listed[:MOST]:
            match one:
                case {"key": str(key), "tokens": int(tokens)}:
                    try:
                        keys[int(key, 16) or 1] = tokens
                    except ValueError:
                        continue
        self._known[replica] = self._clock(), size, keys

    def block_size(self, replica: str) -> int | None:
        """None where nothing is known of it now."""
        known = self._known.get(replica)
        return known[1] if known is not None and self._clock() - known[0] < STALE else None

    def held(self, replica: str, keys: Sequence[int]) -> int:
        """Tokens of the prompt that has these keys."""
        _, size, known = self._known[replica]
        for index in range(len(keys) - 1, -1, -1):
            if keys[index] in known:
                return (index + 1) * size
        return 0

    def keep(self, replicas: Collection[str]) -> None:
        """Listen to these, and forget all others."""
        self._wanted = frozenset(replicas)
        self._known = {name: one for name, one in self._known.items() if name in replicas}
