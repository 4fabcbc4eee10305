"""One policy over one trace: what a gateway's worker knows, whom it chooses, and what comes of it."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from benchmarks.replay import HASHED, Arrival, best_hits, percentile
from benchmarks.replica_cores import Cores
from benchmarks.replica_model import Costs, Job, Server
from gateway.engine_load import EngineLoad
from gateway.policy.schema import Target, Timeouts
from gateway.routing.affinity import BLOCK, MAX_BYTES, Affinity, Prefix
from gateway.routing.held import Asked
from gateway.routing.score import Scores, Sent
from gateway.routing.selector import least_loaded, weighted
from gateway.types import Candidate

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
        cores: Cores | None = None,
        **server: Any,
    ) -> None:
        """``tokens``: of a block. ``cores``: of the one machine of all replicas, none of which may come or go then.
        ``server``: what else a ``Server`` takes."""
        self.now = 0.0
        self._tokens = tokens
        self._serve = partial(Server, blocks=blocks, block_tokens=tokens, costs=costs, cores=cores, **server)
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
