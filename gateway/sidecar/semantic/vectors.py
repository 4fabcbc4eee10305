"""Nearest vectors: exact for few, by clusters (faiss' IVF) for many.

Above ``EXACT_UP_TO`` vectors, clusters are trained on a sample in another thread; the vectors are then copied into them
in steps, while look-ups still use what was there before. At four times that size the same happens again with twice as
many clusters, and so on. ``benchmarks/growth/semantic.py`` measures time, memory and recall.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import islice
from typing import Any, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from gateway.sidecar.semantic.alignment import Floats

Ids = NDArray[np.int64]

log = logging.getLogger(__name__)

EXACT_UP_TO = 20_000
"""Vectors; an exact search in 384 dimensions takes a millisecond of one core then."""
_GROWTH = 4
"""Times as many vectors as at the last training before the next one."""
_CLUSTERS = 512
"""At the first training; twice as many at each further one."""
_PROBES = 24
"""Clusters that are searched: with them recall is above 0.99 for the nearest vector."""
_SAMPLE = 32
"""Vectors for each cluster to train on."""
_STEP = 500
"""Vectors that are copied at once, which takes some 4 ms."""


class _Store(Protocol):
    def __len__(self) -> int: ...

    def add(self, ids: Ids, vectors: Floats) -> None: ...

    def remove(self, number: int) -> None: ...

    def search(self, queries: Floats, count: int) -> Ids:
        """``[queries, count]`` ids, nearest first by inner product; -1 where there are no more."""
        ...


class _Exact:
    """Rows of one matrix; a removed row is filled with the last, so that rows stay dense."""

    def __init__(self, width: int) -> None:
        self._rows = np.zeros((4, width), dtype=np.float32)
        self._ids = np.zeros(4, dtype=np.int64)
        self._row_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._row_of)

    def add(self, ids: Ids, vectors: Floats) -> None:
        for number, vector in zip(ids.tolist(), vectors, strict=True):
            row = self._row_of[number] = len(self._row_of)
            if row == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._rows[row], self._ids[row] = vector, number

    def remove(self, number: int) -> None:
        row, last = self._row_of.pop(number), len(self._row_of)
        if row != last:
            self._rows[row], self._ids[row] = self._rows[last], self._ids[last]
            self._row_of[int(self._ids[row])] = row

    def search(self, queries: Floats, count: int) -> Ids:
        filled = len(self._row_of)
        count = min(count, filled)
        rows = faiss.knn(queries, self._rows[:filled], count, metric=faiss.METRIC_INNER_PRODUCT)[1]
        found: Ids = self._ids[rows]
        return found


class _Clustered:
    """Only the vectors of the clusters nearest to a query are compared; they are kept as float16."""

    def __init__(self, sample: Floats, clusters: int) -> None:
        """Trains, which takes seconds."""
        width = sample.shape[1]
        self._centres = faiss.IndexFlatIP(width)
        self._index: Any = faiss.IndexIVFScalarQuantizer(
            self._centres, width, clusters, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        self._index.cp.niter = 6
        self._index.cp.min_points_per_centroid, self._index.cp.max_points_per_centroid = 1, _SAMPLE
        self._index.train(sample)
        self._index.set_direct_map_type(faiss.DirectMap.Hashtable)  # type: ignore[attr-defined]
        self._index.nprobe = _PROBES

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, ids: Ids, vectors: Floats) -> None:
        self._index.add_with_ids(vectors, ids)

    def remove(self, number: int) -> None:
        self._index.remove_ids(np.array([number], dtype=np.int64))

    def search(self, queries: Floats, count: int) -> Ids:
        found: Ids = self._index.search(queries, count)[1]
        return found


class Vectors:
    """Vectors of length 1 by id. Not thread-safe; ``executor`` runs the training."""

    def __init__(
        self,
        width: int,
        vector_of: Callable[[int], Floats],
        executor: Executor,
        *,
        exact_up_to: int = EXACT_UP_TO,
        clusters: int = _CLUSTERS,
    ) -> None:
        """``vector_of`` gives the vector of an id that was added and not removed."""
        self._vector_of = vector_of
        self._executor = executor
        self._ids: set[int] = set()
        self._store: _Store = _Exact(width)
        self._grow_at = exact_up_to
        self._clusters = clusters
        self._training: Future[_Clustered] | None = None
        self._next: _Clustered | None = None
        """Being filled, to replace ``_store``."""
        self._left: dict[int, None] = {}
        """Ids that are not in ``_next`` yet."""

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def is_exact(self) -> bool:
        return isinstance(self._store, _Exact)

    def add(self, number: int, vector: Floats) -> None:
        ids, vectors = np.array([number], dtype=np.int64), vector[None]
        self._ids.add(number)
        self._store.add(ids, vectors)
        if self._next is not None:
            self._next.add(ids, vectors)
        self._maintain()

    def remove(self, number: int) -> None:
        self._ids.remove(number)
        self._store.remove(number)
        if number in self._left:
            del self._left[number]
        elif self._next is not None:
            self._next.remove(number)

    def search(self, queries: Floats, count: int) -> list[list[int]]:
        """Ids of the nearest vectors to each of ``queries``, roughly in order."""
        self._maintain()
        found = self._store.search(queries, count)
        return [[number for number in row if number >= 0] for row in found.tolist()]

    def _maintain(self) -> None:
        """The next step towards more clusters, if there are too many vectors for those that there are."""
        if self._next is not None:
            self._fill(self._next)
        elif self._training is not None:
            if self._training.done():
                self._begin_filling(self._training)
        elif len(self._ids) > self._grow_at:
            chosen = np.random.default_rng(0).permutation(list(self._ids))[: self._clusters * _SAMPLE]
            sample = np.stack([self._vector_of(number) for number in chosen.tolist()])
            self._training = self._executor.submit(_Clustered, sample, self._clusters)
            self._grow_at *= _GROWTH
            self._clusters *= 2

    def _begin_filling(self, training: Future[_Clustered]) -> None:
        self._training = None
        try:
            self._next = training.result()
        except (MemoryError, RuntimeError) as error:
            log.error("the semantic cache's index cannot be trained and stays as it is: %s", error)
            return
        self._left = dict.fromkeys(self._ids)

    def _fill(self, following: _Clustered) -> None:
        step = list(islice(self._left, _STEP))
        if step:
            following.add(
                np.array(step, dtype=np.int64), np.stack([self._vector_of(number) for number in step])
            )
            for number in step:
                del self._left[number]
        if not self._left:
            self._store, self._next = following, None
