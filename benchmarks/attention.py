"""Microseconds that attention takes a layer: storing keys and values, gathering blocks, and the whole of it.

    python -m benchmarks.attention [--threads 2] [--repeats 30] [--heads 16 --kv-heads 8 --head-dim 128]

The shape is Qwen3-0.6B's unless told otherwise. Each layer has a cache of its own, as in a model, so that keys come
from memory and not from the processor's caches. Cases take turns, and the best of all repeats counts: other work on
the machine only ever adds time.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.attention.metadata import AttentionMetadata
from engine.attention.native_backend import NativeBackend
from engine.core.plan import Plan, ScheduledRequest
from engine.kv_cache import KVCache, KVShape
from engine.worker.batch import Batch, BatchBuilder
from kernels.paged_decode import cache_rows, gather

BLOCK = 16
DTYPES = {
    "bfloat16": (torch.bfloat16, "auto"),
    "float32": (torch.float32, "auto"),
    "bfloat16, int8 KV": (torch.bfloat16, "int8"),
    "bfloat16, fp8 KV": (torch.bfloat16, "fp8"),
}


@dataclass
class Case:
    """``count`` sequences with ``new`` new tokens each, which end at ``length``, or at lengths down to a half of it."""

    name: str
    count: int
    new: int
    length: int
    mixed: bool = False

    def lengths(self) -> list[int]:
        spread = self.length // 2 if self.mixed else 0
        return [self.length - spread * i // self.count for i in range(self.count)]


CASES = [
    *(Case("decode", 1, 1, length) for length in (16, 256, 1024, 1040, 4096)),
    *(Case("decode", 8, 1, length) for length in (16, 256, 1024)),
    Case("decode, mixed lengths", 8, 1, 1024, mixed=True),
    Case("verify 4 guesses", 1, 5, 1024),
    Case("prefill", 1, 512, 512),
    Case("prefill", 1, 512, 4096 + 512),
]


class Bench:
    def __init__(
        self, case: Case, options: argparse.Namespace, dtype: torch.dtype, kv: str, deterministic: bool
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        lengths = case.lengths()
        blocks = [-(-length // BLOCK) for length in lengths]
        shape = KVShape(options.layers, options.kv_heads, options.head_dim)
        device = torch.device("cpu")
        self.cache = KVCache(shape, sum(blocks), BLOCK, device, dtype, kv)
        free = list(range(sum(blocks)))
        random.Random(0).shuffle(free)
        tables = [[free.pop() for _ in range(count)] for count in blocks]
        scheduled_requests = [
            ScheduledRequest(i, [0] * case.new, length - case.new, table, None, True)
            for i, (length, table) in enumerate(zip(lengths, tables, strict=True))
        ]
        self.builder = BatchBuilder(self.cache, device, invariant=deterministic)
        self.plan = Plan(scheduled_requests)
        rows = case.count * case.new
        self.q, self.k, self.v = (
            torch.randn(rows, heads, options.head_dim, generator=generator).to(dtype)
            for heads in (options.heads, options.kv_heads, options.kv_heads)
        )
        for layer in self.cache.layers:
            every = torch.arange(sum(blocks) * BLOCK)
            k = torch.randn(len(every), options.kv_heads, options.head_dim, generator=generator).to(dtype)
            layer.backend.store(layer, k, k, AttentionMetadata(every))
        self.scale = options.head_dim**-0.5

    def store(self, batch: Batch) -> None:
        for layer in self.cache.layers:
            layer.backend.store(layer, self.k, self.v, batch.attention)

    def attend(self, batch: Batch) -> None:
        for layer in self.cache.layers:
            layer.backend.forward(self.q, layer, batch.attention, scale=self.scale)

    def gather(self, batch: Batch) -> None:
        """Of the decodes alone, where it is done: in a prefill it is little, and in 16 bits all is read in place."""
        for group in batch.attention.decodes:
            kv_heads = self.k.shape[1]
            rows = cache_rows(group.block_tables, kv_heads)
            for layer in self.cache.layers:
                if isinstance(layer.backend, NativeBackend):
                    continue
                for cache in (layer.keys, layer.values):
                    if not cache.is_contiguous():
                        continue
                    gather(cache, rows, len(group.block_tables) * kv_heads, self.k.dtype)

    def times(self) -> tuple[float, ...]:
        """Microseconds a layer: store, attend, of which gather; and a step's to build the batch."""
        layers = len(self.cache.layers)
        batch = self.builder.build(self.plan)
        parts = [_time(part, batch) / layers for part in (self.store, self.attend, self.gather)]
        return *parts, _time(lambda _: self.builder.build(self.plan), batch)


def _time(part: Callable[[Batch], object], batch: Batch) -> float:
    begin = time.perf_counter()
    part(batch)
    return (time.perf_counter() - begin) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in {
        "threads": 2,
        "repeats": 30,
        "layers": 28,
        "heads": 16,
        "kv-heads": 8,
        "head-dim": 128,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="these alone")
    parser.add_argument("--case", help="those alone whose name begins so")
    parser.add_argument("--deterministic", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"{options.threads} threads, torch {torch.__version__}; microseconds a layer, best of {options.repeats}\n"
    )
    print("| case | sequences | ends at | dtype | store | attend | of it gather | batch, a step |")
    print("|---|--:|--:|---|--:|--:|--:|--:|")
    for case in CASES:
        if options.case and not case.name.startswith(options.case):
            continue
        with torch.inference_mode():
            names = options.dtype or list(DTYPES)
            benches = [Bench(case, options, *DTYPES[name], options.deterministic) for name in names]
            found: list[list[tuple[float, ...]]] = [[] for _ in benches]
            for _ in range(max(3, options.repeats // (10 if case.new > 100 else 1))):
                for times, bench in zip(found, benches, strict=True):
                    times.append(bench.times())
        for name, times in zip(names, found, strict=True):
            figures = " | ".join(f"{min(column):.0f}" for column in zip(*times, strict=True))
            print(f"| {case.name} | {case.count} | {case.length} | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
