"""What ``--deterministic`` costs: the same requests with and without it.

    python -m benchmarks.deterministic [--repeats 5] [--layers 28] [--threads 2] [--tokens 32] [--folder DIR]
        [--only demo|shape] [--json FILE]

The demo model in float32 on one thread, and Qwen3-0.6B's shape with random weights in bfloat16, int8 and int4: tokens
a second of 1, 8 and 32 streams that have begun, and of one long prompt. Both candidates take turns within each repeat,
the first one changing, after a round that is not counted; figures are medians over the repeats, ratios medians of
each repeat's ratio. The time is that of the loop without its processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.engine_cpu.shape import write_folder
from engine.config import EngineConfig
from engine.core.block_pool import BlockPool
from engine.core.plan import Plan
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.weights.source import locate
from engine.worker.runner import Runner

STREAMS = (1, 8, 32)
PROMPT = 64
LONG = 1024

Measure = Callable[[Runner], float]
"""Tokens a second."""


def decode(streams: int, tokens: int) -> Measure:
    """Counted from the first step in which all of them decode."""

    def measure(runner: Runner) -> float:
        loop = Loop(runner, streams, PROMPT, tokens)
        while not all(gained for gained in loop.counts.values()):
            loop.step(runner)
        before, began = sum(loop.counts.values()), time.perf_counter()
        # To the end of the first, so that all are in every step.
        while max(loop.counts.values()) < tokens:
            loop.step(runner)
        return (sum(loop.counts.values()) - before) / (time.perf_counter() - began)

    return measure


def prefill(runner: Runner) -> float:
    length = min(LONG, runner.max_model_len - 1)
    loop = Loop(runner, 1, length, 1)
    began = time.perf_counter()
    while not loop.counts[0]:
        loop.step(runner)
    return length / (time.perf_counter() - began)


class Loop:
    def __init__(self, runner: Runner, streams: int, length: int, tokens: int) -> None:
        self.counts = dict.fromkeys(range(streams), 0)
        self._scheduler = Scheduler(
            BlockPool(runner.cache.blocks),
            block_size=runner.block_size,
            max_num_seqs=max(STREAMS),
            max_batched_tokens=512,
            max_model_len=runner.max_model_len,
            max_waiting=streams,
            prefix_caching=False,
            windows=runner.windows,
        )
        numbers = Random(0)
        params = SamplingParams(max_tokens=tokens, temperature=0)
        for number in range(streams):
            prompt = [numbers.randrange(2, runner.model.vocab_size) for _ in range(length)]
            self._scheduler.submit(Request(number, prompt, params))

    def step(self, runner: Runner) -> None:
        plan: Plan = self._scheduler.schedule()
        for output in self._scheduler.update(plan, runner.execute(plan)):
            self.counts[output.request_id] += len(output.tokens)


def compare(config: EngineConfig, tokens: int, repeats: int) -> Iterator[dict[str, Any]]:
    runners = [Runner(replace(config, deterministic=flag)) for flag in (False, True)]
    longest = runners[0].max_model_len - PROMPT
    measures: dict[str, Measure] = {
        f"{streams} stream{'s' if streams > 1 else ''}": decode(streams, min(tokens, longest))
        for streams in STREAMS
    }
    for name, measure in {**measures, "long prompt": prefill}.items():
        rates: tuple[list[float], list[float]] = ([], [])
        for repeat in range(repeats + 1):
            for which in (0, 1) if repeat % 2 else (1, 0):
                rate = measure(runners[which])
                if repeat:
                    rates[which].append(rate)
        off, on = map(statistics.median, rates)
        ratio = statistics.median(b / a for a, b in zip(*rates, strict=True))
        yield {"what": name, "off": off, "on": on, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--folder", type=Path, help="where the shape's weights are kept (default: nowhere)")
    parser.add_argument("--only", choices=["demo", "shape"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print("| model | what | tokens/s | with --deterministic | ratio |\n|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as scratch:
        configs = {}
        if options.only != "shape":
            configs["demo, float32"] = EngineConfig(
                locate("demo"), device="cpu", threads=1, kv_cache_blocks=1024
            )
        if options.only != "demo":
            folder = write_folder(
                (options.folder or Path(scratch)) / f"qwen3-{options.layers}", options.layers
            )
            shape = EngineConfig(
                folder,
                device="cpu",
                dtype="bfloat16",
                threads=options.threads,
                kv_cache_blocks=512,
                max_model_len=2048,
            )
            for kind in (None, "int8", "int4"):
                configs[f"Qwen3-0.6B's shape, {kind or 'bfloat16'}"] = replace(shape, quantization=kind)
        for name, config in configs.items():
            for row in compare(config, options.tokens, options.repeats):
                rows.append({"model": name, **row})
                figures = f"{row['off']:.1f} | {row['on']:.1f} | {row['ratio']:.2f}"
                print(f"| {name} | {row['what']} | {figures} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
