"""What it costs to know which server holds a prompt: ``python -m benchmarks.held_prefixes``.

A table as full as it gets, of 16 replicas; prompts of 8,192 tokens in blocks of 16. No server, no GPU.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from gateway.held_prefixes.block_keys import keys_of, packed
from gateway.held_prefixes.kv_events import Stored
from gateway.held_prefixes.replica_blocks import MOST, ReplicaBlocks
from gateway.held_prefixes.table import PLACES, TableWriter
from gateway.held_prefixes.table_reader import TableReader

REPLICAS = 16
SIZE = 16
TOKENS = 8192


def main() -> None:
    random = Random(1)
    with TemporaryDirectory() as folder:
        table = TableWriter(Path(folder) / "held")
        for place in range(REPLICAS):
            table.add_replica(str(place))
            table.tell(str(place), SIZE, in_order=True)
        prompt = [random.randrange(100_000) for _ in range(TOKENS)]
        stored = Stored(range(TOKENS // SIZE), None, prompt, SIZE, "", ())
        blocks = [
            ReplicaBlocks(lambda key, at=at: table.put(key, at), lambda key, at=at: table.drop(key, at))  # type: ignore[misc]
            for at in range(REPLICAS)
        ]
        tracemalloc.start()
        began = tracemalloc.get_traced_memory()[0]
        for at in range(MOST // (TOKENS // SIZE)):
            other = [random.randrange(100_000) for _ in range(TOKENS)]
            hashes = range(2**62 + at * TOKENS, 2**62 + at * TOKENS + TOKENS // SIZE)
            blocks[1].apply(Stored(hashes, None, other, SIZE, "", ()))
        memory = tracemalloc.get_traced_memory()[0] - began
        tracemalloc.stop()
        _say("memory of the first worker, a block", memory / len(blocks[1]), "bytes")
        while table.blocks < PLACES // 2 - TOKENS // SIZE:
            table.put(random.randrange(1, 1 << 63), random.randrange(REPLICAS))
        for at in range(0, REPLICAS, 3):
            blocks[at].apply(stored) if at != 1 else None
        reader = TableReader(Path(folder) / "held")
        reader.replicas()
        ids = packed(prompt)
        keys = keys_of(ids, SIZE)
        per = TOKENS // SIZE / 1e6
        _say("keys, a block", _best(lambda: keys_of(ids, SIZE)) / per, "µs")
        _say("look-up, a block", _best(lambda: reader.in_a_row(keys, range(REPLICAS))) / per, "µs")

        def again() -> None:
            blocks[0].clear()
            blocks[0].apply(stored)

        _say("stored and removed, a block", _best(again) / per, "µs")
        reader.close()
        table.close()


def _best(what: Callable[[], object], times: int = 30) -> float:
    """Seconds."""
    best = 1e9
    for _ in range(times):
        began = time.perf_counter()
        what()
        best = min(best, time.perf_counter() - began)
    return best


def _say(what: str, value: float, unit: str) -> None:
    print(f"{what:>40} {value:8.2f} {unit}")


if __name__ == "__main__":
    main()
