"""What running streams feel of a long prompt, and what a shared prefix saves.

    python -m benchmarks.latency [--model demo|FOLDER|qwen3] [--quantization int8] [--repeats 5] [--json FILE]

``qwen3`` is Qwen3-0.6B's shape with random weights. The loop process is the real one, asked through its client, so
that times hold scheduling, drawing and messages between processes; HTTP and text are left out.

interference: gaps between the tokens of four streams, first alone and then while a prompt of 8,192 tokens is computed;
              once with the default --max-itl-ratio and once without a bound.
prefix:       time to the first token of a prompt with 1,024 tokens that no one has asked before, and of another prompt
              that begins with the same 1,024.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.engine_cpu.shape import SHAPE, write_folder
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.weights.source import locate

STREAMS = 4
LONG = 8192
SHARED = 1024
SETTLE, QUIET = 1.5, 4.0
"""Seconds before and during the time that counts as quiet."""


@asynccontextmanager
async def engine(config: EngineConfig) -> AsyncIterator[EngineClient]:
    client = await EngineClient.start(config)
    try:
        await client.ready()
        yield client
    finally:
        await client.close()


async def read_gaps(client: EngineClient, prompt: list[int], gaps: list[tuple[float, float]]) -> None:
    """Appends (when a token came, seconds since the one before), for ever."""
    endless = SamplingParams(max_tokens=LONG, temperature=0)
    generation = client.submit([(prompt, endless)])
    last = 0.0
    try:
        async for deltas in generation:
            for delta in deltas:
                if last:
                    gaps.append((delta.at, delta.at - last))
                last = delta.at
    finally:
        generation.close()


async def first_token(client: EngineClient, prompt: list[int]) -> float:
    began = time.monotonic()
    generation = client.submit([(prompt, SamplingParams(max_tokens=1, temperature=0))])
    try:
        async for deltas in generation:
            return deltas[0].at - began
    finally:
        generation.close()
    raise RuntimeError("no token came")


async def interference(config: EngineConfig, vocab: int, long: int, repeats: int) -> dict[str, float]:
    random = Random(0)
    found: dict[str, list[float]] = {"quiet": [], "beside": [], "ratio": [], "ttft": []}
    async with engine(replace(config, prefix_caching=False)) as client:
        for _ in range(repeats):
            gaps: list[tuple[float, float]] = []
            prompts = [[random.randrange(2, vocab) for _ in range(32)] for _ in range(STREAMS)]
            streams = [asyncio.create_task(read_gaps(client, prompt, gaps)) for prompt in prompts]
            await asyncio.sleep(SETTLE)
            gaps.clear()
            await asyncio.sleep(QUIET)
            quiet = sorted(gap for _, gap in gaps)
            began = time.monotonic()
            found["ttft"].append(await first_token(client, [random.randrange(2, vocab) for _ in range(long)]))
            ended = time.monotonic()
            beside = sorted(gap for at, gap in gaps if began < at <= ended)
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
            found["quiet"].append(percentile(quiet, 0.99))
            found["beside"].append(percentile(beside, 0.99))
            found["ratio"].append(percentile(beside, 0.99) / percentile(quiet, 0.99))
    return {name: statistics.median(values) for name, values in found.items()}


async def prefix(config: EngineConfig, vocab: int, repeats: int) -> dict[str, float]:
    random = Random(1)
    first, second, ratio = [], [], []
    async with engine(config) as client:
        for _ in range(repeats + 1):
            shared = [random.randrange(2, vocab) for _ in range(SHARED)]
            tails = [[random.randrange(2, vocab) for _ in range(16)] for _ in range(2)]
            times = [await first_token(client, shared + tail) for tail in tails]
            first.append(times[0])
            second.append(times[1])
            ratio.append(times[1] / times[0])
    # The very first request warms up what is lazy.
    return {
        "first": statistics.median(first[1:]),
        "second": statistics.median(second[1:]),
        "ratio": statistics.median(ratio[1:]),
    }


def percentile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="qwen3")
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"])
    parser.add_argument("--long", type=int, default=LONG)
    parser.add_argument("--folder", type=Path, help="keeps the random weights for the next run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["interference", "prefix"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.model == "qwen3":
        folder = options.folder or Path(tempfile.mkdtemp(prefix="tollgate-"))
        model = write_folder(folder / f"qwen3-{options.layers}", options.layers)
    else:
        model = locate(options.model)
    raw = json.loads((model / "config.json").read_text())
    long = min(options.long, raw["max_position_embeddings"] - 2048)
    config = EngineConfig(
        model=model,
        quantization=options.quantization,
        max_model_len=min(raw["max_position_embeddings"], 2 * LONG),
        kv_cache_blocks=2 * LONG // 16 * 2,
        log_level="warning",
    )
    results: dict[str, dict[str, float]] = {}
    if options.only != "prefix":
        for name, max_itl_ratio in (("default stretch", config.max_itl_ratio), ("no bound", 0.0)):
            bounded = replace(config, max_itl_ratio=max_itl_ratio)
            found = asyncio.run(interference(bounded, raw["vocab_size"], long, options.repeats))
            results[name] = found
            print(
                f"{STREAMS} streams beside a prompt of {long}, {name}: gap p99 {1000 * found['quiet']:.1f} ms quiet, "
                f"{1000 * found['beside']:.1f} ms beside, ratio {found['ratio']:.2f}; "
                f"first token of the prompt after {found['ttft']:.2f} s",
                flush=True,
            )
    if options.only != "interference":
        found = asyncio.run(prefix(config, raw["vocab_size"], options.repeats))
        results["prefix"] = found
        print(
            f"first token after {SHARED} + 16 tokens: {1000 * found['first']:.1f} ms anew, "
            f"{1000 * found['second']:.1f} ms with the {SHARED} cached, ratio {found['ratio']:.3f}"
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
