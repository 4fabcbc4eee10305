"""Semantic cache: look-ups offered at once over 100,000 entries, of which all but 16 are given up while they wait

Processor time of the process, without embedding the questions.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence

import faiss
import numpy as np

from benchmarks.growth.semantic import PAYLOAD, WIDTH, unit
from benchmarks.growth.timing import REPEATS
from gateway.sidecar.api import LookupResult
from gateway.sidecar.semantic.index import BATCH, SemanticIndex

COLUMNS = ("offered", "answered", "given up", "ms", "ms an answer")
ENTRIES, ANSWERED = 100_000, 16
OFFERED = (16, 160, 1_000)


def rows() -> Iterator[Sequence[object]]:
    faiss.omp_set_num_threads(1)
    yield from asyncio.run(measured())


async def measured() -> list[Sequence[object]]:
    chance = np.random.default_rng(0)
    vectors = unit(chance.standard_normal((ENTRIES, 64)) @ chance.standard_normal((64, WIDTH)))

    async def embed(texts: Sequence[str]) -> list[bytes]:
        return [vectors[int(text.split()[1])].tobytes() for text in texts]

    index = SemanticIndex(embed, None, 2**40, ENTRIES)
    for number in range(ENTRIES):
        await index.remember("p", f"question {number}", PAYLOAD, key=f"{number}", ttl=1e6)

    def look_up(number: int) -> asyncio.Task[LookupResult]:
        return asyncio.create_task(index.look_up("p", f"question {number} again", budget=0.05))

    for number in range(ENTRIES // 250):  # each copies some vectors into the clusters
        await look_up(number)
    found: list[Sequence[object]] = []
    for offered in OFFERED:
        spent: list[float] = []
        for start in range(REPEATS):
            began = time.process_time_ns()
            tasks = [look_up(start * offered + number) for number in range(offered)]
            while index.queued < offered - BATCH:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for task in tasks[ANSWERED:]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            spent.append((time.process_time_ns() - began) / 1e6)
        least = statistics.median(spent)
        found.append((offered, ANSWERED, offered - ANSWERED, least, least / ANSWERED))
    await index.aclose()
    return found
