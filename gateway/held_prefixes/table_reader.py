"""The table of held blocks, as the workers read it (``gateway/held_prefixes/table.py``)."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gateway.held_prefixes.block_keys import adapter_key
from gateway.held_prefixes.table import (
    HEAD,
    HEADER,
    MAGIC,
    MOST_REPLICAS,
    REPLICA,
    WORDS,
    Clock,
    check_of,
    replica_key,
)

STALE = 5.0
"""Seconds without a sign of the writer, after which what it wrote counts no more."""
_LONGEST_PROBE = 256


class Listed:
    """The replicas of the table, as read at one version of their list."""

    __slots__ = ("block_sizes", "places")

    def __init__(self, places: Mapping[int, int], block_sizes: Mapping[int, int]) -> None:
        self.places = places
        """By the hash of a name; without those whose events are not in order."""
        self.block_sizes = block_sizes
        """By place."""


class TableReader:
    """One worker's. Where there is no table, or nobody writes it, nothing is known."""

    def __init__(self, path: Path, *, clock: Clock = time.monotonic, stale: float = STALE) -> None:
        self._path = path
        self._clock = clock
        self._stale = stale
        self._map: mmap.mmap | None = None
        self._places = 0
        self._opened = 0.0
        self._listed = Listed({}, {})
        self._version = -1

    @property
    def age(self) -> float | None:
        """Seconds since the writer was last known to be there; None where there is no table."""
        if self._map is None:
            return None
        return max(0.0, self._clock() - float(HEAD.unpack_from(self._map)[3]))

    def replicas(self) -> Listed:
        """Those that are known now. Raises nothing."""
        found = self._current()
        if found is None:
            return _NOBODY
        version = HEAD.unpack_from(found)[2]
        if version != self._version:
            if version & 1 or (listed := self._read_list(found, version)) is None:
                return _NOBODY  # it is being changed this moment
            self._listed, self._version = listed, version
        return self._listed

    def knows(self, adapter: str) -> bool:
        """Whether any replica has told of blocks of an adapter by this name."""
        return self._map is not None and any(self._masks(self._map, adapter_key(adapter)))

    def in_a_row(self, keys: Sequence[int], places: Iterable[int]) -> dict[int, int]:
        """How many of the first ``keys`` each replica holds, by place; who holds none is left out."""
        if self._map is None or not keys:
            return {}
        wanted = 0
        for place in places:
            wanted |= 1 << place
        counts: dict[int, int] = {}
        for number, key in enumerate(keys):
            low, high = self._masks(self._map, key)
            left = wanted & (low | high << 64)
            if left != wanted:
                if number:
                    _note(counts, wanted & ~left, number)
                wanted = left
                if not wanted:
                    return counts
        _note(counts, wanted, len(keys))
        return counts

    def close(self) -> None:
        found, self._map = self._map, None
        if found is not None:
            found.close()

    def _masks(self, table: mmap.mmap, key: int) -> tuple[int, int]:
        mask = self._places - 1
        place = key & mask
        for _ in range(_LONGEST_PROBE):
            found, low, high, check = WORDS.unpack_from(table, HEADER + place * 32)
            if found == key:
                return (low, high) if check == check_of(key, low, high) else (0, 0)
            if not found:
                break
            place = (place + 1) & mask
        return 0, 0

    def _current(self) -> mmap.mmap | None:
        """The table, if somebody writes it; a new one is looked for where nobody does, twice a second at most."""
        now = self._clock()
        if self._map is not None and now - HEAD.unpack_from(self._map)[3] < self._stale:
            return self._map
        if now - self._opened >= 0.5:
            self._opened = now
            self._open()
            if self._map is not None and now - HEAD.unpack_from(self._map)[3] < self._stale:
                return self._map
        return None

    def _open(self) -> None:
        self.close()
        self._version = -1
        try:
            with open(self._path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size <= HEADER:
                    return
                table = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return
        magic, places = HEAD.unpack_from(table)[:2]
        if magic != MAGIC or HEADER + places * WORDS.size != size:
            table.close()
            return
        self._map, self._places = table, places

    def _read_list(self, table: mmap.mmap, version: int) -> Listed | None:
        places, sizes = {}, {}
        for place in range(MOST_REPLICAS):
            name, block_size, in_order = REPLICA.unpack_from(table, HEAD.size + place * REPLICA.size)
            if name and block_size and in_order:
                places[name], sizes[place] = place, block_size
        return Listed(places, sizes) if HEAD.unpack_from(table)[2] == version else None


_NOBODY = Listed({}, {})


def _note(counts: dict[int, int], mask: int, blocks: int) -> None:
    while mask:
        lowest = mask & -mask
        counts[lowest.bit_length() - 1] = blocks
        mask ^= lowest


def places_of(listed: Listed, names: Sequence[str]) -> dict[int, str]:
    """By place, those of ``names`` that are listed."""
    return {place: name for name in names if (place := listed.places.get(replica_key(name))) is not None}
