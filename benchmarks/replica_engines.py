"""Does the model of ``benchmarks.replica_choice`` say of four engines what four engine processes do?

    python -m benchmarks.replica_engines [--model demo|FILE.gguf] [--requests 400] [--busy 0.2] [--json FILE]

Four engines of one thread each run on this machine, and Mooncake's trace is played to them, scaled down 32 times: each
of its blocks is one of the engine's, of 16 tokens, and answers are a 32nd as long. First one of them is asked alone, at
prompts of several lengths and several answers at once: that gives the costs of a step. Arrivals are as fast as keeps
each engine ``busy`` so much of the time by that, without anything cached. Then each policy chooses, with the code and
by the figures by which it chooses in the model, and the same arrivals are played to the model with these costs.

The model is told twice: ``machines``, a core for each engine, and ``cores``, those of this machine, which engines
share with each other, the gateway and its clients (``benchmarks.replica_cores``): how many an engine keeps busy, and
how much longer two take side by side, is measured in the same run, as is what gateway and clients take.

``hits`` need no clock, and should agree as they are. Seconds should where nothing else runs here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

import httpx

from benchmarks.processes import free_port, processor_seconds, running, wait_for
from benchmarks.replay import DATA, Arrival, percentile
from benchmarks.replica_choice import HEAD, TRACE, recorded, row
from benchmarks.replica_cores import Cores
from benchmarks.replica_model import Costs, Job, Server
from benchmarks.replica_play import POLICIES, Play, Replica, Result, Worker, choose
from gateway.backends.engine_poller import read_figures
from gateway.policy.schema import Target, Timeouts
from gateway.routing.affinity import Affinity
from gateway.routing.score import Scores
from gateway.types import Candidate

TOKENS = 16
"""Of a block."""
SCALE = 32
LONGEST = 1900
"""Tokens of a prompt: the bundled model's context is 2,048."""
BLOCKS = 781
BUDGET = 512
PAUSE = 0.3
"""Seconds between two requests by which costs are measured: as an engine is asked later."""


@dataclass
class Engine:
    name: str
    url: str
    pid: int
    client: httpx.AsyncClient

    async def ask(self, prompt: Sequence[int], answer: int) -> tuple[float, float, int]:
        """Seconds to the first token and to the last, and tokens of the prompt that were cached."""
        body = {
            "model": "m",
            "prompt": list(prompt),
            "max_tokens": answer,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began, first, cached = time.perf_counter(), 0.0, 0
        async with self.client.stream("POST", f"{self.url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("choices") and not first:
                    first = time.perf_counter() - began
                    self.on_first()
                if usage := event.get("usage"):
                    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return first, time.perf_counter() - began, cached

    def on_first(self) -> None:
        """Replaced by who wants to know at once."""


@contextmanager
def engines(model: str, count: int) -> Iterator[list[tuple[str, str, int]]]:
    """Names, addresses and processes."""
    with ExitStack() as stack:
        found = []
        for number in range(count):
            port = free_port()
            command = [sys.executable, "-m", "engine", "serve", "--model", model, "--served-model-name", "m"]
            command += ["--port", str(port), "--threads", "1", "--kv-cache-blocks", str(BLOCKS)]
            command += ["--max-batched-tokens", str(BUDGET)]
            pid = stack.enter_context(running(command, cores=os.sched_getaffinity(0)))
            found.append((f"r{number}", port, pid))
        for _, port, _ in found:
            wait_for(port, "/health")
        yield [(name, f"http://127.0.0.1:{port}", pid) for name, port, pid in found]


def prompt_of(arrival: Arrival | Job) -> list[int]:
    blocks = arrival.hashes if isinstance(arrival, Arrival) else arrival.blocks
    tokens: list[int] = []
    for block in blocks:
        tokens += Random(block).choices(range(10, 250), k=TOKENS)
    return tokens[: arrival.length]


def scaled_down(trace: list[Arrival], requests: int) -> list[Arrival]:
    found = []
    for one in trace[:requests]:
        hashes = one.hashes[: LONGEST // TOKENS]
        length = max(2, min(one.length // SCALE, TOKENS * len(hashes)))
        found.append(Arrival(one.at, hashes, length, max(1, one.generate // SCALE)))
    return found


def spread(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """At times as by chance: the trace's are rounded to three seconds, and so ten come at once, for which four engines
    need four cores."""
    lot, at, found = Random(2), 0.0, []
    for one in arrivals:
        at += lot.expovariate(1.0)
        found.append(replace(one, at=at))
    return found


def _prompts(lot: Random, length: int, count: int) -> list[list[int]]:
    return [[lot.randrange(10, 250) for _ in range(length)] for _ in range(count)]


async def _gap(engine: Engine, lot: Random, count: int) -> float:
    """Seconds between two tokens of so many answers at once."""
    await asyncio.sleep(PAUSE)
    answers = await asyncio.gather(*(engine.ask(prompt, 48) for prompt in _prompts(lot, 32, count)))
    return statistics.median((last - first) / 47 for first, last, _ in answers)


async def calibrated(engine: Engine) -> Costs:
    """The costs of a step, by what one engine takes alone, asked now and then: right after another request, whose
    weights are still in the processor's caches, it is quicker."""
    lot, points = Random(1), []
    for _ in range(5):
        for length in (16, 128, 256, 512, 1024, 1536):
            await asyncio.sleep(PAUSE)
            first, _, _ = await engine.ask(*_prompts(lot, length, 1), 1)
            points.append((length, first))
    lengths = sorted({length for length, _ in points})
    usual = [statistics.median(first for one, first in points if one == length) for length in lengths]
    slope, base = statistics.linear_regression(lengths, usual)
    one = statistics.median([await _gap(engine, lot, 1) for _ in range(5)])
    eight = statistics.median([await _gap(engine, lot, 8) for _ in range(5)])
    decode = max(0.0, (eight - one) / 7)
    step = max(1e-5, one - decode)
    return Costs(step, max(1e-7, slope - step / BUDGET), decode, max(0.0, base - step))


async def together(one: Engine, other: Engine) -> tuple[float, float]:
    """Cores that an engine keeps busy which computes alone, and how many times as long it takes beside another."""
    lot = Random(2)

    async def work(engine: Engine) -> float:
        began = time.perf_counter()
        for prompt in _prompts(lot, 1024, 3):
            await engine.ask(prompt, 24)
        return time.perf_counter() - began

    alone, busy = [], []
    for _ in range(3):
        before = processor_seconds(one.pid)
        alone.append(await work(one))
        busy.append((processor_seconds(one.pid) - before) / alone[-1])
    pairs = [max(await asyncio.gather(work(one), work(other))) for _ in range(3)]
    return statistics.median(busy), max(1.0, statistics.median(pairs) / statistics.median(alone))


async def play(
    policy: str, arrivals: list[Arrival], speed: float, found: list[Engine]
) -> tuple[Result, float]:
    """What came of it, and the cores that this process took: it is gateway and clients. Each engine is emptied by
    others' prompts first."""
    worker = Worker(Affinity(), Scores(clock=time.perf_counter))
    worker.replicas = {
        engine.name: Replica(
            engine.name,
            Candidate("m", Target(backend=engine.name, model="m"), Timeouts()),
            Server(blocks=BLOCKS, block_tokens=TOKENS),
            lambda replica: replica.told,  # type: ignore[arg-type, return-value]
        )
        for engine in found
    }
    by_name = {engine.name: engine for engine in found}
    among = [replica.candidate for replica in worker.replicas.values()]
    random, ttft = Random(0), [0.0] * len(arrivals)
    hits, computed, choosing = [0] * len(arrivals), dict.fromkeys(by_name, 0), 0.0

    async def told() -> None:
        while True:
            for engine in found:
                body = (await engine.client.get(f"{engine.url}/v1/engine/state")).content
                worker.replicas[engine.name].told = load = read_figures(body)
                worker.scores.told(engine.name, load)
            await asyncio.sleep(0.5)

    async def ask(number: int, arrival: Arrival) -> None:
        nonlocal choosing
        job = Job(number, 0.0, arrival.hashes, arrival.length, arrival.generate)
        began = time.perf_counter()
        name, sent = choose(policy, worker, job, among, random, TOKENS)
        choosing += time.perf_counter() - began
        worker.loads[name] = worker.load(name) + 1
        engine = replace(by_name[name])
        if sent is not None:
            engine.on_first = sent.began  # type: ignore[method-assign]
        ttft[number], _, hits[number] = await engine.ask(prompt_of(arrival), arrival.generate)
        worker.loads[name] -= 1
        computed[name] += arrival.length - hits[number]
        if sent is not None:
            sent.ended(hits[number] / arrival.length)

    await _emptied(found)
    polling = asyncio.create_task(told())
    began, own = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for number, arrival in enumerate(arrivals):
            await asyncio.sleep(max(0.0, began + arrival.at / speed - time.perf_counter()))
            group.create_task(ask(number, arrival))
    own = (time.process_time() - own) / (time.perf_counter() - began)
    polling.cancel()
    tokens = sum(one.length for one in arrivals)
    result = Result(
        policy,
        len(found),
        requests=len(arrivals),
        hit_rate=sum(hits) / tokens,
        ttft_p50_s=percentile(ttft, 0.5),
        ttft_p99_s=percentile(ttft, 0.99),
        ttft_mean_s=statistics.mean(ttft),
        imbalance=max(computed.values()) / statistics.mean(computed.values()),
        microseconds=choosing / len(arrivals) * 1e6,
    )
    return result, own


async def _emptied(found: list[Engine]) -> None:
    """Prompts that nobody asks again take all of each cache."""
    lot = Random(time.time_ns())
    for engine in found:
        for _ in range(BLOCKS * TOKENS // 1600 + 1):
            await engine.ask([lot.randrange(10, 250) for _ in range(1600)], 1)


async def compare(options: argparse.Namespace, urls: list[tuple[str, str, int]]) -> list[dict[str, Result]]:
    arrivals = scaled_down(recorded(options), options.requests)
    if options.spread:
        arrivals = spread(arrivals)
    found = []
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None)) as client:
        four = [Engine(name, url, pid, client) for name, url, pid in urls]
        costs = await calibrated(four[0])
        each, beside = await together(four[0], four[1])
        seconds = [costs.step * (one.generate + 1) + costs.prefill * one.length for one in arrivals]
        span = arrivals[-1].at
        speed = options.busy * 4 * span / sum(seconds)
        cores = len(os.sched_getaffinity(0))
        print(
            f"a step {costs.step * 1e3:.2f} ms, a prompt's token {costs.prefill * 1e6:.1f} µs, a sequence that decodes "
            f"{costs.decode * 1e6:.0f} µs, outside of steps {costs.outside * 1e3:.1f} ms; an engine takes {each:.2f} "
            f"of {cores} cores, and {beside:.2f} times as long beside another; {len(arrivals)} requests in "
            f"{span / speed:.0f} s\n"
        )
        print(f"{'':<9}{HEAD}")
        for policy in options.policies:
            real, own = await play(policy, arrivals, speed, four)
            told = {"real": real}
            shared = Cores(max(0.5, cores - own), each, max(1.0, beside / max(1.0, 2 * each / cores)))
            for name, machine in (("machines", None), ("cores", shared)):
                told[name] = Play(
                    policy,
                    arrivals,
                    4,
                    speed=speed,
                    churn=False,
                    blocks=BLOCKS,
                    tokens=TOKENS,
                    costs=costs,
                    cores=machine,
                    sequences=64,
                    budget=BUDGET,
                ).run()
            real.best_hit_rate = told["cores"].best_hit_rate
            for name, one in told.items():
                print(f"{name:<9}{_row(one)}")
            for name in ("machines", "cores"):
                ratios = [
                    getattr(real, figure) / getattr(told[name], figure)
                    for figure in ("ttft_p50_s", "ttft_p99_s", "ttft_mean_s")
                ]
                print(f"{'':<9}{'real/' + name:>49} {ratios[0]:8.2f} {ratios[1]:8.2f} {ratios[2]:8.2f}")
            print(f"{'':<9}gateway and clients took {own:.2f} cores", flush=True)
            found.append(told)
    return found


def _row(one: Result) -> str:
    return row(one).replace(
        f"{one.ttft_p50_s:8.2f}s {one.ttft_p99_s:7.1f}s {one.ttft_mean_s:7.2f}s", _seconds(one)
    )


def _seconds(one: Result) -> str:
    return f"{one.ttft_p50_s:8.3f}s {one.ttft_p99_s:7.3f}s {one.ttft_mean_s:7.3f}s"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument(
        "--busy", type=float, default=0.2, help="the share of the time in which each engine works"
    )
    parser.add_argument(
        "--spread", action="store_true", help="arrivals by chance, in place of the trace's bunches"
    )
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(POLICIES))
    parser.add_argument("--data", type=Path, default=DATA, help=f"where {TRACE}.jsonl is")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with engines(options.model, 4) as urls:
        results = asyncio.run(compare(options, urls))
    if options.json:
        told = [{name: asdict(one) for name, one in each.items()} for each in results]
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
