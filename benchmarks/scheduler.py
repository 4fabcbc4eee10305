"""What does the scheduler alone cost? Milliseconds of ``schedule`` and ``update`` a step, with an idle worker.

    python -m benchmarks.scheduler [--running 256] [--steps 500] [--json FILE]

decode         all requests decode
prefix cache   the same, and each block is registered as it fills
drafts         the same, with four drafts a step of which two come true
mixed          decodes beside prompts of 2,000 tokens that come and go, with the prefix cache
admission      answers of eight tokens over shared prompts of 1,000: a request in thirty comes and goes in each step
blocked        decodes while the longest of prompts waits for blocks that it cannot have

It is plain Python on one core, so processor time is what is counted: neighbours on the machine do not.

The last line is what a block's key costs, and a search for a prompt of 8,192 tokens that is cached.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, SamplerOutput
from engine.core.prefix_cache import PrefixCache, block_key
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler

BLOCK = 16
MAX_DRAFTS = 4


def answer(plan: Plan, rng: random.Random, speculating: bool) -> SamplerOutput:
    sampled = SamplerOutput()
    for scheduled in plan.requests:
        if scheduled.sampling is None:
            continue
        token = rng.randrange(32_000)
        kept = scheduled.tokens[len(scheduled.tokens) - scheduled.num_draft_tokens :][:2]
        sampled.tokens[scheduled.request_id] = [*kept, token]
        if speculating:
            sampled.draft_tokens[scheduled.request_id] = [token] * scheduled.lookahead
    return sampled


class Load:
    """Requests kept at a number by new ones."""

    def __init__(
        self,
        *,
        running: int,
        prompt: Callable[[int], list[int]],
        generate: Callable[[int], int],
        **options: object,
    ) -> None:
        self.running = running
        self._prompt = prompt
        self._generate = generate
        self._rng = random.Random(0)
        self._speculating = bool(options.get("max_drafts"))
        self._number = 0
        settings = {"blocks": 64 * running, "prefix_caching": True, "max_batched_tokens": 2048, **options}
        self.scheduler = Scheduler(
            BlockPool(settings.pop("blocks")),
            block_size=BLOCK,
            max_num_seqs=running,
            max_model_len=100_000,
            max_waiting=100_000,
            **settings,
        )

    def submit(self, prompt: list[int], generate: int) -> None:
        self._number += 1
        self.scheduler.submit(Request(self._number, prompt, SamplingParams(max_tokens=generate)))

    def fill(self) -> None:
        while len(self.scheduler.running) + len(self.scheduler.waiting) < self.running:
            self.submit(self._prompt(self._number), self._generate(self._number))

    def step(self) -> float:
        began = time.thread_time()
        plan = self.scheduler.schedule()
        planned = time.thread_time()
        sampled = answer(plan, self._rng, self._speculating)
        drew = time.thread_time()
        self.scheduler.update(plan, sampled)
        return time.thread_time() - drew + planned - began

    def measure(self, steps: int) -> list[float]:
        self.fill()
        for _ in range(50):
            self.step()
            self.fill()
        gc.collect()
        gc.freeze()
        seconds = []
        for _ in range(steps):
            seconds.append(self.step())
            self.fill()
        gc.unfreeze()
        return seconds


def prompts(length: int, shared: int = 0) -> Callable[[int], list[int]]:
    """Random tokens, of which the first ``shared`` are one of four texts."""

    def make(number: int) -> list[int]:
        common = random.Random(number % 4).choices(range(32_000), k=shared)
        return common + random.Random(1000 + number).choices(range(32_000), k=length - shared)

    return make


def cases(running: int, steps: int) -> dict[str, list[float]]:
    forever = lambda number: 50_000  # noqa: E731
    blocks = running * (steps * 3 // BLOCK + 40)
    found = {}
    plain = {"running": running, "prompt": prompts(200), "generate": forever, "blocks": blocks}
    found["decode"] = Load(**plain, prefix_caching=False).measure(steps)
    found["prefix cache"] = Load(**plain).measure(steps)
    found["drafts"] = Load(**plain, max_drafts=MAX_DRAFTS).measure(steps)
    found["mixed"] = Load(
        running=running,
        prompt=lambda number: prompts(2000 if number % 16 == 0 else 200)(number),
        generate=lambda number: 20 if number % 16 == 0 else 400,
        blocks=blocks,
        prefill_chunk=512,
    ).measure(steps)
    found["admission"] = Load(
        running=running,
        prompt=prompts(1020, 1000),
        generate=lambda number: 8 + number % 45,
        blocks=running * 100,
    ).measure(steps)
    blocked = Load(running=running, prompt=prompts(200), generate=forever, blocks=blocks)
    blocked.fill()
    blocked.step()
    blocked.running += 1
    blocked.scheduler.queues.max_num_seqs += 1
    blocked.submit(prompts(90_000)(0), 100)
    found["blocked"] = blocked.measure(steps)
    return found


def keys() -> tuple[float, float]:
    """Seconds of one key, and of finding a cached prompt of 8,192 tokens."""
    parent, tokens = bytes(8), bytes(4 * BLOCK)
    began = time.thread_time()
    for _ in range(100_000):
        block_key(parent, tokens)
    one = (time.thread_time() - began) / 100_000
    prompt = prompts(8193)(0)
    pool = BlockPool(512)
    cache = PrefixCache(pool, BLOCK)
    cache.extend(cache.root(None), prompt, pool.allocate(512), 8192)
    began = time.thread_time()
    for _ in range(20):
        cache.match(cache.root(None), prompt)
    return one, (time.thread_time() - began) / 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    print(f"{options.running} running requests, milliseconds of schedule + update a step\n")
    print(f"{'case':<14} {'median':>8} {'p99':>8}")
    for name, seconds in cases(options.running, options.steps).items():
        ordered = sorted(1000 * value for value in seconds)
        row = {"median_ms": statistics.median(ordered), "p99_ms": ordered[int(0.99 * len(ordered))]}
        results[name] = row
        print(f"{name:<14} {row['median_ms']:8.3f} {row['p99_ms']:8.3f}")
    one, whole = keys()
    results["keys"] = {"key_us": 1e6 * one, "match_8192_ms": 1e3 * whole}
    print(
        f"\na block's key: {1e6 * one:.2f} µs; finding a cached prompt of 8,192 tokens: {1e3 * whole:.2f} ms"
    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
