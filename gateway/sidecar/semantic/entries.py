"""Answered questions in partitions, bounded in bytes and number."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import faiss
import numpy as np

from gateway.sidecar.semantic.alignment import Floats

_OVERHEAD = 512
"""Approximate bytes of an entry's Python objects."""


@dataclass(slots=True, eq=False)
class IndexEntry:
    partition: str
    question: str
    vector: Floats
    payload: bytes
    key: str
    stored: float
    """By the index's clock, seconds."""
    expires: float
    message: bytes | None = None
    """In the shared store."""
    row: int = -1

    @property
    def size(self) -> int:
        texts = 4 * (len(self.question) + len(self.key))
        return len(self.payload) + 2 * self.vector.nbytes + texts + _OVERHEAD


class IndexPartition:
    """Entries in rows of one matrix; a removed row is filled with the last, so that rows stay dense."""

    def __init__(self, width: int) -> None:
        self.entries: list[IndexEntry] = []
        self.by_question: dict[str, IndexEntry] = {}
        self.by_key: dict[str, set[IndexEntry]] = {}
        self._vectors = np.zeros((4, width), dtype=np.float32)

    def add(self, entry: IndexEntry) -> None:
        entry.row = len(self.entries)
        if entry.row == len(self._vectors):
            self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])
        self._vectors[entry.row] = entry.vector
        self.entries.append(entry)
        self.by_question[entry.question] = entry
        self.by_key.setdefault(entry.key, set()).add(entry)

    def remove(self, entry: IndexEntry) -> None:
        last = self.entries.pop()
        if last is not entry:
            self.entries[entry.row] = last
            self._vectors[entry.row] = last.vector
            last.row = entry.row
        self._vectors[len(self.entries)] = 0
        del self.by_question[entry.question]
        named = self.by_key[entry.key]
        named.discard(entry)
        if not named:
            del self.by_key[entry.key]

    def nearest(self, vector: Floats, count: int) -> list[tuple[float, IndexEntry]]:
        """By inner product, nearest first."""
        filled = self._vectors[: len(self.entries)]
        found = faiss.knn(vector[None], filled, min(count, len(filled)), metric=faiss.METRIC_INNER_PRODUCT)
        return [(float(near), self.entries[row]) for near, row in zip(found[0][0], found[1][0], strict=True)]


class IndexEntries:
    """All partitions, with one bound and one LRU order. Not thread-safe."""

    def __init__(self, max_bytes: int, max_entries: int) -> None:
        self.size = 0
        self._max_bytes, self._max_entries = max_bytes, max_entries
        self._partitions: dict[str, IndexPartition] = {}
        self._by_use: OrderedDict[IndexEntry, None] = OrderedDict()
        self._expiries: list[tuple[float, int, IndexEntry]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._by_use)

    def __iter__(self) -> Iterator[IndexEntry]:
        return iter(self._by_use)

    def add(self, entry: IndexEntry) -> None:
        """Replaces one with the same question. An entry larger than the bound is not kept."""
        partition = self._partitions.get(entry.partition)
        if partition is not None and (old := partition.by_question.get(entry.question)) is not None:
            self.remove(old)
        if entry.size > self._max_bytes:
            return
        self._partitions.setdefault(entry.partition, IndexPartition(len(entry.vector))).add(entry)
        self._by_use[entry] = None
        self.size += entry.size
        self._count += 1
        heapq.heappush(self._expiries, (entry.expires, self._count, entry))
        while self.size > self._max_bytes or len(self._by_use) > self._max_entries:
            self.remove(next(iter(self._by_use)))
        if len(self._expiries) > 2 * len(self._by_use) + 64:
            self._expiries = [item for item in self._expiries if item[2] in self._by_use]
            heapq.heapify(self._expiries)

    def remove(self, entry: IndexEntry) -> None:
        if entry not in self._by_use:
            return
        del self._by_use[entry]
        self.size -= entry.size
        partition = self._partitions[entry.partition]
        partition.remove(entry)
        if not partition.entries:
            del self._partitions[entry.partition]

    def used(self, entry: IndexEntry) -> None:
        self._by_use.move_to_end(entry)

    def expire(self, now: float) -> None:
        """Remove expired entries."""
        while self._expiries and self._expiries[0][0] <= now:
            self.remove(heapq.heappop(self._expiries)[2])

    def named(self, partition: str, key: str) -> list[IndexEntry]:
        found = self._partitions.get(partition)
        return [] if found is None else list(found.by_key.get(key, ()))

    def nearest(self, partition: str, vector: Floats, count: int) -> list[tuple[float, IndexEntry]]:
        found = self._partitions.get(partition)
        return [] if found is None else found.nearest(vector, count)
