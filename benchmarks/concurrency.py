"""What do many streams at once do? Tokens/s, waits and the engine's batch sizes, through the gateway.

    make serve                                           # in another terminal
    python -m benchmarks.concurrency --key tg-... [--streams 1 8 64] [--repeats 3] [--json FILE]

Every stream asks another question, at temperature 0, and reads to the end. For each number of streams the table
shows medians over the repeats; the last part is the histogram of how many sequences the engine computed together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai

QUESTIONS = [
    f"Tell me a story about a {hero} named {name}."
    for hero in ("fox", "bear", "cat", "dog", "mouse", "owl", "robot", "dragon")
    for name in ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry")
]
HISTOGRAM = "tollgate_engine_step_batch_size"


@dataclass
class Run:
    seconds: float
    tokens: int
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


async def stream(client: openai.AsyncOpenAI, model: str, question: str, run: Run) -> None:
    start = last = time.perf_counter()
    events = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    seen = False
    async for event in events:
        now = time.perf_counter()
        if event.usage:
            run.tokens += event.usage.completion_tokens
        elif not seen:
            run.first.append(now - start)
            seen = True
        else:
            run.gaps.append(now - last)
        last = now


async def at_once(client: openai.AsyncOpenAI, model: str, streams: int) -> Run:
    run = Run(0.0, 0)
    start = time.perf_counter()
    await asyncio.gather(*(stream(client, model, QUESTIONS[i % len(QUESTIONS)], run) for i in range(streams)))
    run.seconds = time.perf_counter() - start
    return run


def histogram(page: str) -> dict[float, float]:
    """Upper bound of each bucket to the steps counted up to it."""
    found = re.findall(rf'^{HISTOGRAM}_bucket\{{[^}}]*le="([^"]+)"[^}}]*\}} (\S+)$', page, re.MULTILINE)
    return {float(bound): float(count) for bound, count in found}


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--engine", default="http://127.0.0.1:8100")
    parser.add_argument("--key", default=os.environ.get("TOLLGATE_KEY", ""))
    parser.add_argument("--model", default="tollgate-demo")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    async with (
        openai.AsyncOpenAI(
            base_url=f"{options.url}/v1", api_key=options.key, timeout=300, max_retries=0
        ) as client,
        httpx.AsyncClient() as http,
    ):
        await at_once(client, options.model, 2)
        print(
            f"{'streams':>7} {'tokens/s':>9} {'TTFT p50':>9} {'TTFT p99':>9} {'ITL p50':>8} {'ITL p99':>8}  (ms)"
        )
        for streams in options.streams:
            before = histogram((await http.get(f"{options.engine}/metrics")).text)
            runs = [await at_once(client, options.model, streams) for _ in range(options.repeats)]
            after = histogram((await http.get(f"{options.engine}/metrics")).text)
            row = {
                "tokens_per_second": statistics.median(run.tokens / run.seconds for run in runs),
                **{
                    f"{name}_p{round(share * 100)}_ms": 1000
                    * statistics.median(percentile(getattr(run, kind), share) for run in runs)
                    for name, kind in (("ttft", "first"), ("itl", "gaps"))
                    for share in (0.5, 0.99)
                },
                "steps_up_to_batch_size": {
                    str(bound): after[bound] - before.get(bound, 0.0) for bound in after
                },
            }
            results[streams] = row
            print(
                f"{streams:7} {row['tokens_per_second']:9.0f} {row['ttft_p50_ms']:9.1f} {row['ttft_p99_ms']:9.1f} "
                f"{row['itl_p50_ms']:8.1f} {row['itl_p99_ms']:8.1f}"
            )
    for streams, row in results.items():
        print(f"\nsteps by batch size, {streams} streams:")
        below, total = 0.0, max(row["steps_up_to_batch_size"].values(), default=0.0)
        for bound, count in row["steps_up_to_batch_size"].items():
            if count > below:
                print(
                    f"  up to {bound:>5}: {count - below:6.0f}  {'#' * round(50 * (count - below) / total)}"
                )
            below = count
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
