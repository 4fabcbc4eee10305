"""Which replica gets which request, and what comes of it: Mooncake's trace over 2 to 64 replicas that come and go.

    python -m benchmarks.replica_choice table [--replicas 2,4,8,16,32,64] [--blocks 781] [--each 600] [--json FILE]
    python -m benchmarks.replica_choice liars [--replicas 8]
    python -m benchmarks.replica_choice drawn [--replicas 16] [--workers 4]
    python -m benchmarks.replica_choice model

The gateway's own code chooses: ``weighted`` (random), ``least_loaded``, ``Affinity``, ``Scores``. It sees what it would
see: requests that it sent, first tokens as they come, and once a second what each replica says of itself. Replicas are
``benchmarks.replica_model``'s, by the cost model of ``benchmarks.replay`` (eight billion parameters on one large GPU,
KV memory for 400,000 tokens; ``--blocks`` of 512). The trace (https://github.com/kvcache-ai/Mooncake) tells a hash
for each 512 tokens of a prompt; each replica gets about 0.9 requests a second of 13,700 tokens, in the trace's own time
from four replicas on: for more of them it is played several times at once, as other conversations with the same system
prompt.

``table``: replicas come and go: a quarter of them restart with an empty cache, each away for 15 seconds; an eighth
comes anew in the middle, and as many leave at three quarters. What a replica had in flight as it went is sent again.
``hits``: prompt tokens that were found in a cache, ``best``: in one without bounds that all replicas share. Seconds are
from a request's arrival to its first token. ``imbalance``: the busiest replica's seconds over the mean, of those that
were there all the time.

``liars``: one of the replicas says all the time that it is idle and takes four times as long for everything; or says
that it is full; or goes on saying what it said in one busy moment, which no clock tells. ``share``: what it gets of its
part. ``drawn``: how many replicas to draw and look at. ``model``: the model beside the engine's own scheduler.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.replay import DATA, SPEED, Arrival, Replay, made_up, percentile, traces
from benchmarks.replica_model import Job, Server
from benchmarks.replica_play import POLICIES, Play, Replica, Result, honest
from gateway.engine_load import EngineLoad

TRACE = "mooncake_conversation"


def says(load: EngineLoad) -> Callable[[Replica], EngineLoad]:
    return lambda replica: load


IDLE = EngineLoad()
FULL = EngineLoad(running=128, waiting=500, kv_usage=1.0)
STALE = EngineLoad(running=20, waiting=6, kv_usage=0.9)


def scaled(trace: list[Arrival], replicas: int, each: int) -> tuple[list[Arrival], float]:
    """``each`` requests a replica, and how many times as fast the trace is played. In several copies at once, which
    have the first block in common alone."""
    load = SPEED[TRACE] * replicas
    copies = max(1, round(load))
    most = max(block for arrival in trace for block in arrival.hashes) + 1
    first = trace[: -(-each * replicas // copies)]
    lot = Random(0)
    shifts = [lot.uniform(0, 60) for _ in range(copies)]
    found = [
        Arrival(
            one.at + shifts[copy],
            tuple(block + copy * most if block else 0 for block in one.hashes),
            one.length,
            one.generate,
        )
        for copy in range(copies)
        for one in first
    ]
    found.sort(key=lambda one: one.at)
    return found, load / copies


HEAD = (
    f"{'replicas':>8} {'policy':<16} {'hits':>6} {'best':>6} {'TTFT p50':>9} {'p99':>8} {'mean':>8} "
    f"{'imbalance':>9} {'busy':>5} {'choice':>7}"
)


def row(one: Result, name: str | None = None) -> str:
    return (
        f"{one.replicas:8d} {name or one.policy:<16} {one.hit_rate:6.1%} {one.best_hit_rate:6.1%} "
        f"{one.ttft_p50_s:8.2f}s {one.ttft_p99_s:7.1f}s {one.ttft_mean_s:7.2f}s {one.imbalance:9.2f} {one.busy:5.0%} "
        f"{one.microseconds:5.0f}µs"
    )


def recorded(options: argparse.Namespace) -> list[Arrival]:
    found = traces(options.data, 4000).get(TRACE)
    if found is None:
        print(f"{TRACE} is not in {options.data}: a made-up trace is played.\n")
        found = made_up(4000)
    return found


def table(options: argparse.Namespace) -> list[Result]:
    trace = recorded(options)
    print(HEAD)
    results = []
    for replicas in options.replicas:
        arrivals, speed = scaled(trace, replicas, options.each)
        for policy in options.policies:
            for seed in range(options.seeds):
                one = Play(
                    policy,
                    arrivals,
                    replicas,
                    speed=speed * options.load,
                    workers=options.workers,
                    churn=not options.steady,
                    seed=seed,
                    blocks=options.blocks,
                ).run()
                results.append(one)
                print(row(one), flush=True)
    return results


def liars(options: argparse.Namespace) -> list[Result]:
    trace = recorded(options)
    results = []
    tales: dict[str, dict[str, Any]] = {
        "all honest": {},
        "slow, tells": {"liar": honest, "slowness": 4.0},
        "slow, says idle": {"liar": says(IDLE), "slowness": 4.0},
        "says it is full": {"liar": says(FULL)},
        "stale": {"liar": says(STALE)},
    }
    print(f"{'':<17}{HEAD} {'share':>6}")
    for replicas in options.replicas:
        arrivals, speed = scaled(trace, replicas, options.each)
        for tale, change in tales.items():
            for policy in options.policies:
                one = Play(
                    policy,
                    arrivals,
                    replicas,
                    speed=speed * options.load,
                    churn=False,
                    blocks=options.blocks,
                    workers=options.workers,
                    **change,
                ).run()
                results.append(one)
                print(f"{tale:<17}{row(one)} {one.share:6.2f}", flush=True)
    return results


def drawn(options: argparse.Namespace) -> list[Result]:
    trace = recorded(options)
    results = []
    print(HEAD)
    for replicas in options.replicas:
        arrivals, speed = scaled(trace, replicas, options.each)
        for count in (1, 2, 3, 4, 0):
            one = Play(
                "score",
                arrivals,
                replicas,
                speed=speed * options.load,
                workers=options.workers,
                churn=not options.steady,
                drawn=count,
                blocks=options.blocks,
            ).run()
            results.append(one)
            print(row(one, f"score of {count or 'all'}"), flush=True)
    return results


def model(options: argparse.Namespace) -> list[Result]:
    trace = recorded(options)[: options.each]
    print(f"{'speed':>6} {'':<10} {'hits':>6} {'TTFT p50':>9} {'p99':>8} {'seconds here':>12}")
    for speed in (0.1, 0.2, 0.3):
        began = time.perf_counter()
        server, jobs = Server(), []
        for number, one in enumerate(trace):
            server.run(one.at / speed)
            job = Job(number, one.at / speed, one.hashes, one.length, one.generate)
            jobs.append(job)
            server.submit(job)
        server.drain()
        ttft = [job.first - job.at for job in jobs if job.first is not None]
        hits = sum(job.hit for job in jobs) / sum(job.length for job in jobs)
        took = time.perf_counter() - began
        p50, p99 = percentile(ttft, 0.5), percentile(ttft, 0.99)
        print(f"{speed:6.1f} {'model':<10} {hits:6.1%} {p50:8.2f}s {p99:7.1f}s {took:11.1f}s")
        began = time.perf_counter()
        found = Replay(trace, blocks=781 * 8, block_size=64, speed=speed, weights=False).run()
        took = time.perf_counter() - began
        p50, p99 = found.ttft_p50_s, found.ttft_p99_s
        print(
            f"{speed:6.1f} {'scheduler':<10} {found.hit_rate:6.1%} {p50:8.2f}s {p99:7.1f}s {took:11.1f}s",
            flush=True,
        )
    return []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("table", "liars", "drawn", "model"))
    parser.add_argument("--replicas", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(POLICIES))
    parser.add_argument("--each", type=int, default=600, help="requests a replica")
    parser.add_argument("--blocks", type=int, default=781, help="of 512 tokens, of each replica's KV memory")
    parser.add_argument("--load", type=float, default=1.0, help="times as many requests a second")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--workers", type=int, default=1, help="of the gateway, each of which knows what it sent"
    )
    parser.add_argument("--steady", action="store_true", help="no replica comes or goes")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = {"table": [2, 4, 8, 16, 32, 64], "liars": [8], "drawn": [16], "model": []}
    options.replicas = options.replicas or sizes[options.what]
    what: dict[str, Callable[[argparse.Namespace], list[Result]]] = {
        "table": table,
        "liars": liars,
        "drawn": drawn,
        "model": model,
    }
    results = what[options.what](options)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in results], indent=1))


if __name__ == "__main__":
    main()
