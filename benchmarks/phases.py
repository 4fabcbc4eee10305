"""What prefill and decode apart are worth: long prompts beside running streams, by one process and by two.

    python -m benchmarks.phases [--model FILE.gguf] [--streams 4] [--prompts 8] [--tokens 1500] [--cores 2]

Streams of short prompts run all the time; one after the other prompts of ``--tokens`` tokens come, the next a second
after the first tokens of the one before. Of two processes each has half of the cores as threads; one has all of them,
and again half, as on a machine with other work threads that wait for each other may be worse than fewer.

TTFT is that of the long prompts, in seconds; the gaps between tokens are those of the streams while long prompts are
under way, in milliseconds, and tokens/s is the speed of all streams together in that time. ``equal``: whether the first
eight tokens of all long prompts are those of the first way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx

from benchmarks.processes import ended_in_order

_CONTEXT = 2048
_SEQS = 8
_SAID = 8
"""Tokens of the answer to a long prompt."""
_PAUSE = 1.0
"""Seconds between a first token and the next prompt."""
_SECRET = "TOLLGATE_HANDOVER_SECRET"
_SHARED = (
    "--max-model-len",
    str(_CONTEXT),
    "--max-num-seqs",
    str(_SEQS),
    "--port",
    "0",
    "--log-level",
    "warning",
)
_WHOLE = ("--no-chunked-prefill", "--max-batched-tokens", str(_CONTEXT + _SEQS), "--max-itl-ratio", "0")


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    flags: Sequence[str] = ()
    """Of the engine that is asked."""
    share: float = 1.0
    """Of the cores, for each of its processes."""
    at: str = ""
    """Where another hands blocks over; ``{folder}`` is one of the run."""


WAYS = (
    Way("one process, prompts whole", _WHOLE),
    Way("one process, prompts in chunks"),
    Way("one process, prompts whole, half the threads", _WHOLE, 0.5),
    Way("one process, prompts in chunks, half the threads", share=0.5),
    Way("two processes, shared memory", share=0.5, at="unix://{folder}/kv.sock"),
    Way("two processes, TCP", share=0.5, at="tcp://127.0.0.1:0"),
)


@dataclass(slots=True)
class Seen:
    ttft: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    seconds: float = 0.0
    """In which long prompts were under way."""
    answers: list[str] = field(default_factory=list)
    fetched: int = 0
    """Long prompts that another process computed."""


@asynccontextmanager
async def engine(model: str, *flags: str, threads: int) -> AsyncIterator[str]:
    """Its URL."""
    command = [
        sys.executable,
        "-m",
        "engine",
        "serve",
        "--model",
        model,
        "--served-model-name",
        "m",
        *_SHARED,
    ]
    command += [*flags, "--threads", str(threads)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": str(threads)}
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        if " on " not in line:
            raise RuntimeError("the engine did not start")
        yield line.split(" on ")[1].strip()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@asynccontextmanager
async def engines(way: Way, model: str, cores: int) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        threads = max(1, int(cores * way.share))
        if not way.at:
            yield await stack.enter_async_context(engine(model, *way.flags, threads=threads))
            return
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        at = way.at.format(folder=folder)
        gives = await stack.enter_async_context(
            engine(
                model, "--role", "prefill", "--handover-address", at, "--max-itl-ratio", "0", threads=threads
            )
        )
        async with httpx.AsyncClient() as http:
            at = (await http.get(f"{gives}/v1/engine/state")).json()["handover"]["address"]
        yield await stack.enter_async_context(
            engine(model, "--role", "decode", "--prefill-from", at, threads=threads)
        )


async def tokens(http: httpx.AsyncClient, url: str, prompt: list[int], most: int) -> AsyncIterator[str]:
    """Texts as they come: one a token."""
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": most,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    async with http.stream("POST", f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])["choices"][0]["text"]


async def measure(way: Way, options: argparse.Namespace, *, idle: bool = False) -> Seen:
    # Streams that end draw again: what is asked beside them does not depend on that.
    rng, longs, seen = Random(1), Random(2), Seen()
    beginnings: list[asyncio.Event] = []
    under_way = False

    async def stream(http: httpx.AsyncClient, url: str) -> None:
        begun = asyncio.Event()
        beginnings.append(begun)
        while True:
            last = None
            prompt = [rng.randrange(5, 250) for _ in range(20)]
            async for _ in tokens(http, url, prompt, _CONTEXT - 100):
                now = time.perf_counter()
                if last is not None and under_way:
                    seen.gaps.append(now - last)
                last = now
                begun.set()

    async def ask(http: httpx.AsyncClient, url: str, prompt: list[int]) -> str:
        nonlocal under_way
        began, text, under_way = time.perf_counter(), "", True
        first = True
        async for piece in tokens(http, url, prompt, _SAID):
            if first:
                seen.ttft.append(time.perf_counter() - began)
                first = False
            text += piece
        seen.seconds += time.perf_counter() - began
        under_way = False
        return text

    async with engines(way, options.model, options.cores) as url, httpx.AsyncClient(timeout=None) as http:
        warm = [rng.randrange(5, 250) for _ in range(options.tokens)]
        await ask(http, url, warm)
        seen.ttft.clear()
        seen.seconds = 0.0
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(stream(http, url)) for _ in range(options.streams)]
            await asyncio.sleep(0)
            for begun in beginnings:
                await begun.wait()
            if idle:
                began, under_way = time.perf_counter(), True
                await asyncio.sleep(options.idle)
                under_way, seen.seconds = False, time.perf_counter() - began
            for _ in range(0 if idle else options.prompts):
                await asyncio.sleep(_PAUSE)
                seen.answers.append(
                    await ask(http, url, [longs.randrange(5, 250) for _ in range(options.tokens)])
                )
            for one in streams:
                one.cancel()
        seen.fetched = (await http.get(f"{url}/v1/engine/state")).json()["handover"]["fetched_prompts"]
    return seen


def percentile(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else float("nan")


def row(name: str, seen: Seen, expected: Sequence[str]) -> str:
    ttft = (f"{statistics.median(seen.ttft):.2f}", f"{max(seen.ttft):.2f}") if seen.ttft else ("", "")
    gaps = [f"{1000 * percentile(seen.gaps, share):.0f}" for share in (0.5, 0.99, 1.0)]
    speed = f"{len(seen.gaps) / seen.seconds:.1f}"
    equal = ("yes" if seen.answers == list(expected) else "no") if seen.answers else ""
    return f"| {' | '.join((name, *ttft, *gaps, speed, equal))} |"


async def run(options: argparse.Namespace) -> None:
    os.environ.setdefault(_SECRET, secrets.token_hex(32))
    print("| | TTFT p50 | most | gap p50 | p99 | most | tokens/s | equal |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    print(row("no long prompts", await measure(WAYS[1], options, idle=True), ()), flush=True)
    print(
        row("no long prompts, half the threads", await measure(WAYS[3], options, idle=True), ()), flush=True
    )
    expected: list[str] = []
    for way in WAYS:
        seen = await measure(way, options)
        expected = expected or seen.answers
        if way.at and seen.fetched <= options.prompts - 1:
            print(
                f"({options.prompts + 1 - seen.fetched} prompts were computed by the engine that was asked)"
            )
        print(row(way.name, seen, expected), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1500, help="of a long prompt")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--idle", type=float, default=10.0, help="seconds without long prompts")
    options = parser.parse_args()
    if Path(options.model).exists():
        options.model = str(Path(options.model).absolute())
    with ended_in_order():
        asyncio.run(run(options))


if __name__ == "__main__":
    main()
