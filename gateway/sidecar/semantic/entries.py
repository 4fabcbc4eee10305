"""Answered questions in partitions, bounded in bytes and number."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

from gateway.sidecar.semantic.alignment import Floats
from gateway.sidecar.semantic.vectors import Vectors

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
    number: int = -1
    """Its own; given when it is added."""

    @property
    def size(self) -> int:
        texts = 4 * (len(self.question) + len(self.key))
        return len(self.payload) + 2 * self.vector.nbytes + texts + _OVERHEAD


class IndexPartition:
    """Entries by question, by key, and by number for their vectors."""

    def __init__(self, width: int, executor: Executor) -> None:
        self.by_number: dict[int, IndexEntry] = {}
        self.by_question: dict[str, IndexEntry] = {}
        self.by_key: dict[str, set[IndexEntry]] = {}
        self._vectors = Vectors(width, lambda number: self.by_number[number].vector, executor)

    def add(self, entry: IndexEntry) -> None:
        self.by_number[entry.number] = entry
        self.by_question[entry.question] = entry
        self.by_key.setdefault(entry.key, set()).add(entry)
        self._vectors.add(entry.number, entry.vector)

    def remove(self, entry: IndexEntry) -> None:
        self._vectors.remove(entry.number)
        del self.by_number[entry.number], self.by_question[entry.question]
        named = self.by_key[entry.key]
        named.discard(entry)
        if not named:
            del self.by_key[entry.key]

    def nearest(self, queries: Floats, count: int) -> list[list[tuple[float, IndexEntry]]]:
        """For each query, entries with their cosines, nearest first."""
        found = []
        for query, numbers in zip(queries, self._vectors.search(queries, count), strict=True):
            entries = [self.by_number[number] for number in numbers]
            near = [(float(entry.vector @ query), entry) for entry in entries]
            found.append(sorted(near, key=lambda one: -one[0]))
        return found


class IndexEntries:
    """All partitions, with one bound and one LRU order. Not thread-safe."""

    def __init__(self, max_bytes: int, max_entries: int, executor: Executor) -> None:
        """``executor`` trains the indexes of large partitions."""
        self.size = 0
        self._executor = executor
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
        if (partition := self._partitions.get(entry.partition)) is None:
            partition = self._partitions[entry.partition] = IndexPartition(len(entry.vector), self._executor)
        self._count += 1
        entry.number = self._count
        partition.add(entry)
        self._by_use[entry] = None
        self.size += entry.size
        heapq.heappush(self._expiries, (entry.expires, entry.number, entry))
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
        if not partition.by_number:
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

    def nearest(self, partition: str, queries: Floats, count: int) -> list[list[tuple[float, IndexEntry]]]:
        """As ``IndexPartition.nearest``; nothing for a partition without entries."""
        found = self._partitions.get(partition)
        return [[] for _ in queries] if found is None else found.nearest(queries, count)
