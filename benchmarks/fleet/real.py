"""The simulation beside the real thing, small: two gateways, a Redis, three servers whose tokens come one by one.

Costs are calibrated by three loads (few whole answers, many, and streams); then other loads are predicted and tried:
the processor time of gateways and Redis, and how long answers take.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

import aiohttp
import numpy as np

from benchmarks.fleet.costs import MEASURED, Costs
from benchmarks.fleet.fleet import simulate
from benchmarks.fleet.machine import Machine
from benchmarks.fleet.outcome import Outcome
from benchmarks.fleet.topology import Topology
from benchmarks.fleet.traffic import Traffic
from benchmarks.load import question
from benchmarks.processes import free_port, processor_seconds, running, thread_seconds, wait_for
from benchmarks.proxies import Candidate, start_gateway

ENGINES, GATEWAYS = 3, 2
CHUNKS, PACE = 50, 0.02
"""Of a stream of the model ``trickled`` (``benchmarks/load.py``)."""
CORES = {0, 1}


class Part(NamedTuple):
    """Requests a second of each kind."""

    whole: float
    streams: float


CALIBRATION = (Part(20, 0), Part(100, 0), Part(0, 15))
TRIED = (Part(0, 20), Part(30, 10), Part(80, 4))


@dataclass(frozen=True, slots=True)
class Seen:
    requests: int
    streams: int
    seconds: float
    gateways: float
    """Of processor time, in all."""
    redis: float
    took: float
    """Seconds of a stream, median."""


class Place(NamedTuple):
    gateways: Sequence[Candidate]
    redis: int


def start(stack: ExitStack) -> Place:
    """Raises ``SystemExit`` without Redis."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("redis-server is not installed (Debian: apt-get install redis-server)")
    port = free_port()
    argv = [program, "--port", str(port), "--save", "", "--appendonly", "no"]
    redis = stack.enter_context(running(argv, cores=CORES))
    urls = []
    for _ in range(ENGINES):
        engine = free_port()
        argv = [sys.executable, "-m", "benchmarks.fleet.upstream", str(engine)]
        stack.enter_context(running(argv, cores=CORES))
        wait_for(engine, "/v1/engine/state")
        urls.append(f"http://127.0.0.1:{engine}/v1")
    models = {
        name: {"targets": [{"backend": "up", "model": name}], "select": "least_loaded"}
        for name in ("static", "trickled")
    }
    more: Mapping[str, object] = {
        "backends": {"up": {"kind": "openai", "replicas": urls}},
        "models": models,
        "prices": {name: {"input": 0.15, "output": 0.6} for name in models},
    }
    store = f"redis://127.0.0.1:{port}/0"
    gateways = [start_gateway(stack, 1, cores=CORES, store=store, more=more) for _ in range(GATEWAYS)]
    return Place(gateways, redis)


async def ask(place: Place, part: Part, seconds: float, seed: int) -> Seen:
    """Poisson arrivals, each at one of the gateways."""
    rng, took = random.Random(seed), []
    counts = {False: 0, True: 0}

    async def one(session: aiohttp.ClientSession, stream: bool) -> None:
        gateway = rng.choice(place.gateways)
        head = dict(line.split(": ", 1) for line in gateway.headers) | {"content-type": "application/json"}
        body = question("trickled" if stream else "static", stream=stream)
        url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
        began = time.perf_counter()
        async with session.post(url, data=body, headers=head) as answer:
            if answer.status != 200:
                raise SystemExit(f"{answer.status}: {await answer.text()}")
            await answer.read()
        counts[stream] += 1
        if stream:
            took.append(time.perf_counter() - began)

    def busy() -> tuple[float, float]:
        return sum(processor_seconds(one.pids[0]) for one in place.gateways), thread_seconds(place.redis)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(one(session, False) for _ in range(20)))
        counts[False] = 0
        await asyncio.sleep(1.0)
        before, began, tasks = busy(), time.perf_counter(), []
        rate = part.whole + part.streams
        at = began
        while (at := at + rng.expovariate(rate)) < began + seconds:
            if (wait := at - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(one(session, rng.random() * rate < part.streams)))
        await asyncio.gather(*tasks)
        after, spent = busy(), time.perf_counter() - began
    median = float(np.median(took)) if took else 0.0
    return Seen(
        counts[False] + counts[True],
        counts[True],
        spent,
        after[0] - before[0],
        after[1] - before[1],
        median,
    )


class PerRequest(NamedTuple):
    """Seconds of a processor for each request. Receipts, ledger and log are written in batches, whatever came within
    50 ms: the more there are, the less of a batch each has to bear."""

    alone: float
    batch: float
    stream: float
    """More, of a stream."""

    def of(self, requests: float, streams: float, seconds: float) -> float:
        """In a second."""
        return (
            requests * (self.alone + _share(requests / seconds) * self.batch) + streams * self.stream
        ) / seconds


def _share(rate: float) -> float:
    return 1 / (1 + rate / GATEWAYS * MEASURED.receipts_together)


def fitted(few: Seen, many: Seen, streams: Seen, of: str, idle: float) -> PerRequest:
    """``idle``: processor seconds in a second of nothing to do."""

    def each(seen: Seen) -> tuple[float, float]:
        return _share(seen.requests / seen.seconds), (getattr(seen, of) - idle * seen.seconds) / seen.requests

    (one, dear), (other, cheap), (third, streamed) = each(few), each(many), each(streams)
    batch = max(0.0, (dear - cheap) / (one - other))
    alone = cheap - other * batch
    return PerRequest(alone, batch, streamed - alone - third * batch)


def predicted(costs: Costs, part: Part, seconds: float) -> Outcome:
    """By the same simulation as of a thousand engines, whose steps take as long as these servers' pauses."""
    rng = np.random.default_rng(1)
    rate = part.whole + part.streams
    count = int(rng.poisson(rate * seconds))
    streamed = rng.random(count) * rate < part.streams
    traffic = Traffic(
        np.sort(rng.uniform(0, seconds, count)),
        np.ones(count, np.int64),
        np.where(streamed, CHUNKS, 1).astype(np.int64),
        np.zeros(count, np.int64),
    )
    machine = Machine(
        "paced", PACE, 1e-12, 0.0, 0.0, 0.0, 0.0, 0.0, 10**9, max_num_seqs=10**6, max_itl_ratio=1.0
    )
    topology = Topology(ENGINES, GATEWAYS, workers=1, polled=False)
    return simulate(topology, traffic, machine, costs, rng)


def main(seconds: float) -> None:
    with ExitStack() as stack:
        place = start(stack)
        time.sleep(2.0)
        cpu = [processor_seconds(one.pids[0]) for one in place.gateways], thread_seconds(place.redis)
        time.sleep(4.0)
        now = [processor_seconds(one.pids[0]) for one in place.gateways], thread_seconds(place.redis)
        idle = (sum(now[0]) - sum(cpu[0])) / 4.0, (now[1] - cpu[1]) / 4.0
        few, many, streams = (asyncio.run(ask(place, part, seconds, 1)) for part in CALIBRATION)
        gateways = fitted(few, many, streams, "gateways", idle[0])
        redis = fitted(few, many, streams, "redis", idle[1])
        for name, one in (("gateways", gateways), ("Redis", redis)):
            print(
                f"{name}: {one.alone * 1e6:.0f} µs a request, {one.batch * 1e6:.0f} a batch, "
                f"{one.stream * 1e6:.0f} more a stream of {CHUNKS} chunks"
            )
        costs = replace(
            MEASURED,
            request=gateways.alone + gateways.batch,
            chunk=gateways.stream / CHUNKS,
            reservation=redis.alone + redis.batch,
            looked_at=0.0,
            replica=0.0,
        )
        print()
        print(
            "| whole + streams a second | gateways, cores: predicted | real | | Redis | real | | a stream, s | real |"
        )
        print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
        for number, part in enumerate(TRIED):
            told, seen = predicted(costs, part, seconds), asyncio.run(ask(place, part, seconds, 2 + number))
            # Of as many as came: arrivals by chance are a tenth more or fewer.
            came = seen.requests, seen.streams, seen.seconds
            mine, real = gateways.of(*came) + idle[0], seen.gateways / seen.seconds
            store, real_store = redis.of(*came) + idle[1], seen.redis / seen.seconds
            stays = (told.last - told.traffic.at)[told.traffic.answer > 1]
            print(
                f"| {part.whole:.0f} + {part.streams:.0f} | {mine:.3f} | {real:.3f} | {mine / real:.2f} "
                f"| {store:.4f} | {real_store:.4f} | {store / real_store:.2f} "
                f"| {np.median(stays):.3f} | {seen.took:.3f} |",
                flush=True,
            )
