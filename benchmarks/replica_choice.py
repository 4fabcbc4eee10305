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
import heapq
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.replay import DATA, HASHED, SPEED, Arrival, Replay, best_hits, made_up, percentile, traces
from benchmarks.replica_model import Costs, Job, Server
from gateway.engine_load import EngineLoad
from gateway.policy.schema import Target, Timeouts
from gateway.routing.affinity import BLOCK, MAX_BYTES, Affinity, Prefix
from gateway.routing.held import Asked
from gateway.routing.score import Scores, Sent
from gateway.routing.selector import least_loaded, weighted
from gateway.types import Candidate

TRACE = "mooncake_conversation"
AWAY = 15.0
"""Seconds that a restart takes."""
TOLD_EVERY = 1.0
SEEN = MAX_BYTES // BLOCK * 64 // HASHED
"""Hashes of a prompt that prefix affinity sees: 16 KiB, at four bytes a token."""
POLICIES = ("random", "least_loaded", "prefix_affinity", "score")


@dataclass
class Result:
    policy: str
    replicas: int
    requests: int = 0
    hit_rate: float = 0.0
    best_hit_rate: float = 0.0
    ttft_p50_s: float = 0.0
    ttft_p99_s: float = 0.0
    ttft_mean_s: float = 0.0
    imbalance: float = 0.0
    busy: float = 0.0
    """The mean share of the time."""
    sent_again: int = 0
    share: float = 0.0
    """What the first replica got of its part of the requests."""
    microseconds: float = 0.0
    """Of this machine's processor, for a choice: the mean."""


@dataclass(slots=True)
class Replica:
    name: str
    candidate: Candidate
    server: Server
    tells: Callable[[Replica], EngineLoad]
    there: bool = True
    always: bool = True
    """From the beginning to the end."""
    told: EngineLoad | None = None
    requests: int = 0
    busy: float = 0.0
    """Of servers that it was before it was started again."""


def honest(replica: Replica) -> EngineLoad:
    server = replica.server
    return EngineLoad(
        running=server.running,
        waiting=server.waiting,
        kv_usage=server.used,
        kv_tokens=server.total * server.block_tokens,
    )


def says(load: EngineLoad) -> Callable[[Replica], EngineLoad]:
    return lambda replica: load


IDLE = EngineLoad()
FULL = EngineLoad(running=128, waiting=500, kv_usage=1.0)
STALE = EngineLoad(running=20, waiting=6, kv_usage=0.9)


@dataclass
class Worker:
    """One of the gateway's: what it knows."""

    affinity: Affinity
    scores: Scores
    loads: dict[str, int] = field(default_factory=dict)
    replicas: Mapping[str, Replica] = field(default_factory=dict)

    def load(self, name: str, /) -> int:
        return self.loads.get(name, 0)

    def told(self, name: str, /) -> EngineLoad | None:
        return self.replicas[name].told


def choose(
    policy: str, worker: Worker, job: Job, among: list[Candidate], random: Random, tokens: int = HASHED
) -> tuple[str, Sent | None]:
    """Who gets ``job``, whose blocks are of so many ``tokens``."""
    if policy == "random":
        return weighted(among, random)[0].target.backend, None
    if policy == "least_loaded":
        return least_loaded(among, worker, random)[0].target.backend, None
    if policy == "prefix_affinity":
        blocks = job.blocks[: SEEN * HASHED // tokens]
        prefix = Prefix(b"%d" % blocks[0], blocks)
        chosen = worker.affinity.order("m", prefix, among, worker)[0]
        worker.affinity.remember("m", prefix, chosen)
        return chosen.target.backend, None
    key = b"%d" % job.blocks[min(2, len(job.blocks) - 1)]
    asked = Asked(Prefix(key, job.blocks), job.length, answer=job.generate, piece_tokens=tokens)
    ranking = worker.scores.rank(asked, {one.target.backend: 1.0 for one in among}, worker, random)
    best = ranking.looks[0]
    return best.name, worker.scores.sent(asked, best)


class Play:
    """One policy over one trace."""

    def __init__(
        self,
        policy: str,
        arrivals: list[Arrival],
        replicas: int,
        *,
        speed: float = 1.0,
        workers: int = 1,
        churn: bool = True,
        seed: int = 0,
        drawn: int = 2,
        liar: Callable[[Replica], EngineLoad] | None = None,
        slowness: float = 1.0,
        blocks: int = 781,
        tokens: int = HASHED,
        costs: Costs | None = None,
        **server: Any,
    ) -> None:
        """``tokens``: of a block. ``server``: what else a ``Server`` takes."""
        self.now = 0.0
        self._tokens = tokens
        self._serve = partial(Server, blocks=blocks, block_tokens=tokens, costs=costs, **server)
        self._policy = policy
        self._arrivals = arrivals
        self._speed = speed
        self._random = Random(seed)
        self._replicas: dict[str, Replica] = {}
        self._workers = [
            Worker(Affinity(), Scores(clock=lambda: self.now, drawn=drawn), replicas=self._replicas)
            for _ in range(workers)
        ]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._result = Result(policy, replicas)
        self._jobs: list[Job] = []
        self._sent: dict[int, tuple[Worker, str, Sent | None]] = {}
        self._choosing = 0.0
        for number in range(replicas):
            self._come(f"r{number}")
        if liar is not None:
            first = self._replicas["r0"]
            first.tells, first.server = liar, self._serve(slowness=slowness)
        if churn:
            self._plan_churn(replicas, arrivals[-1].at / speed)

    def _plan_churn(self, replicas: int, span: float) -> None:
        lot = Random(7)  # the same for all policies
        names = list(self._replicas)
        lot.shuffle(names)
        restarts, moves = max(1, replicas // 4), max(1, replicas // 8)
        for number, name in enumerate(names[:restarts]):
            at = span * (0.15 + 0.7 * number / restarts)
            self._at(at, partial(self._go, name))
            self._at(at + AWAY, partial(self._return, name))
        for number in range(moves):
            self._at(span * (0.5 + 0.02 * number), partial(self._come, f"new{number}", always=False))
            leaving = names[-1 - number]
            if leaving not in names[:restarts]:
                self._at(span * (0.75 + 0.02 * number), partial(self._leave, leaving))

    def run(self) -> Result:
        self._at(0.0, self._tell)
        for number, arrival in enumerate(self._arrivals):
            at = arrival.at / self._speed
            while self._events and self._events[0][0] <= at:
                self._happen()
            self.now = at
            job = Job(number, at, arrival.hashes, arrival.length, arrival.generate)
            self._jobs.append(job)
            self._send(job)
        span = self.now
        while self._sent:
            self._happen()
        return self._summary(span)

    def _happen(self) -> None:
        self.now, _, event = heapq.heappop(self._events)
        event()

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, len(self._events) + int(when * 1e6), event))

    def _tell(self) -> None:
        """Each replica works on until now, and says what it has to do."""
        for replica in self._replicas.values():
            if replica.there:
                replica.server.run(self.now)
                replica.told = replica.tells(replica)
        for worker in self._workers:
            for name, replica in self._replicas.items():
                if replica.told is not None:
                    worker.scores.told(name, replica.told)
        self._at(self.now + TOLD_EVERY, self._tell)

    def _come(self, name: str, *, always: bool = True) -> None:
        target = Target(backend=name, model="x")
        server = self._serve(now=self.now)
        self._replicas[name] = Replica(
            name, Candidate("m", target, Timeouts()), server, honest, always=always
        )

    def _go(self, name: str) -> None:
        replica = self._replicas[name]
        replica.server.run(self.now)
        replica.there, replica.told = False, None
        lost = replica.server.jobs
        replica.busy += replica.server.busy
        replica.server = self._serve(now=self.now)
        for worker in self._workers:
            worker.scores.restarted(name)
        for job in lost:
            self._ended(job, None)
            self._result.sent_again += 1
            if job.first is None:
                self._send(Job(job.number, job.at, job.blocks, job.length, job.generate))

    def _return(self, name: str) -> None:
        replica = self._replicas[name]
        replica.server.run(self.now)
        replica.there = True

    def _leave(self, name: str) -> None:
        self._replicas[name].always = False
        self._go(name)

    def _send(self, job: Job) -> None:
        worker = self._random.choice(self._workers)
        there = [one for one in self._replicas.values() if one.there]
        for one in there:
            one.server.run(self.now)
        began = time.thread_time()
        name, sent = choose(
            self._policy, worker, job, [one.candidate for one in there], self._random, self._tokens
        )
        self._choosing += time.thread_time() - began
        worker.loads[name] = worker.load(name) + 1
        replica = self._replicas[name]
        replica.requests += 1
        self._jobs[job.number] = job
        self._sent[job.number] = worker, name, sent
        job.began = partial(self._began, job)
        job.ended = partial(self._ended, job)
        replica.server.submit(job)

    def _began(self, job: Job, now: float) -> None:
        sent = self._sent[job.number][2]
        if sent is not None:
            here, self.now = self.now, now
            sent.began()
            self.now = here

    def _ended(self, job: Job, now: float | None) -> None:
        worker, name, sent = self._sent.pop(job.number)
        worker.loads[name] -= 1
        if sent is not None:
            here, self.now = self.now, self.now if now is None else now
            sent.ended(None if now is None else job.hit / job.length)
            self.now = here

    def _summary(self, span: float) -> Result:
        result, jobs = self._result, self._jobs
        tokens = sum(job.length for job in jobs)
        ttft = [job.first - job.at for job in jobs if job.first is not None]
        busy = [one.busy + one.server.busy for one in self._replicas.values() if one.always]
        requests = [one.requests for one in self._replicas.values()]
        result.requests = len(jobs)
        result.hit_rate = sum(job.hit for job in jobs) / tokens
        result.best_hit_rate = best_hits(self._arrivals, self._tokens, self._tokens) / tokens
        result.ttft_p50_s, result.ttft_p99_s = percentile(ttft, 0.5), percentile(ttft, 0.99)
        result.ttft_mean_s = sum(ttft) / len(ttft)
        result.imbalance = max(busy) / (sum(busy) / len(busy))
        result.busy = sum(busy) / len(busy) / span
        result.share = self._replicas["r0"].requests * len(requests) / sum(requests)
        result.microseconds = self._choosing / len(jobs) * 1e6
        return result


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
