"""Semantic cache: processor time to find the 8 nearest of N entries, recall, and memory

Entries are mixtures of random vectors; a query is a stored vector with noise (cosine 0.9), like a paraphrase. Recall is
that of the stored vector. A search ``alone`` is one at a time, ``together`` in batches of 16, as under load.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import faiss
import numpy as np

from benchmarks.growth.timing import thread_microseconds
from gateway.sidecar.semantic.alignment import Floats
from gateway.sidecar.semantic.entries import IndexEntries, IndexEntry
from gateway.sidecar.semantic.index import BATCH, CANDIDATES

COLUMNS = ("entries", "alone, ms", "together, ms", "recall", "added in, µs", "memory, MB", "kB an entry")
SIZES = (10_000, 100_000, 1_000_000)
WIDTH, TOPICS, QUERIES = 384, 12_000, 256
PAYLOAD = b"x" * 200


def rows() -> Iterator[Sequence[object]]:
    faiss.omp_set_num_threads(1)
    for size in SIZES:
        yield measured(size)


def measured(size: int) -> Sequence[object]:
    chance = np.random.default_rng(0)
    topics = unit(chance.standard_normal((TOPICS, 64)) @ chance.standard_normal((64, WIDTH)))
    asked = np.linspace(0, size - 1, QUERIES).astype(int)
    queries = np.zeros((QUERIES, WIDTH), dtype=np.float32)
    before, adding = resident(), 0
    with ThreadPoolExecutor(1) as trainer:
        entries = IndexEntries(2**40, size, trainer)
        for start in range(0, size, 1_000):
            one, other = chance.integers(TOPICS, size=(2, 1_000))
            share = chance.uniform(0.15, 0.85, (1_000, 1))
            vectors = unit(topics[one] * share + topics[other] * (1 - share))
            here = np.flatnonzero((asked >= start) & (asked < start + 1_000))
            queries[here] = vectors[asked[here] - start]
            began = time.thread_time_ns()
            for number, vector in enumerate(vectors, start):
                entries.add(
                    IndexEntry("p", f"{number}", vector.copy(), PAYLOAD, f"{number}", 0.0, float("inf"))
                )
            adding += time.thread_time_ns() - began
        queries = unit(queries + 0.025 * chance.standard_normal(queries.shape))
        trainer.submit(int).result()  # it is idle
        for _ in range(size // 500 + 2):
            entries.nearest("p", queries[:1], 1)  # each copies some vectors into new clusters
        found = entries.nearest("p", queries, CANDIDATES)
        hits = [
            f"{at}" in {entry.question for _, entry in near} for at, near in zip(asked, found, strict=True)
        ]
        return (
            size,
            timed(entries, queries, 1),
            timed(entries, queries, BATCH),
            sum(hits) / QUERIES,
            adding / 1e3 / size,
            (resident() - before) / 2**20,
            (resident() - before) / 1024 / size,
        )


def timed(entries: IndexEntries, queries: Floats, together: int) -> float:
    """Milliseconds of processor time a search."""

    def search() -> None:
        for start in range(0, QUERIES, together):
            entries.nearest("p", queries[start : start + together], CANDIDATES)

    return thread_microseconds(search, QUERIES) / 1000


def resident() -> int:
    """Bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def unit(rows: np.ndarray) -> Floats:
    scaled: Floats = (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)
    return scaled
