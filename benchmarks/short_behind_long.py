"""How long does a short prompt wait behind longer ones, and what does that cost these?

    python -m benchmarks.short_behind_long [--model FILE.gguf] [--longs 40] [--json FILE]

Prompts of ``--long`` tokens come at random, so many that computing them takes 70 % of the time, and among them twice as
many of ``--short`` tokens; all are of one tenant and one priority, and have answers of ``--generate`` tokens. The same
arrivals run twice: in turn, so that a prompt waits for all those before it, as it was before prompts were divided; and
divided, as the engine does it. The last column: how long a long prompt takes beside a stream of short ones, relative to
how long it takes without them; in both cases someone decodes, which by itself makes steps shorter and prompts later.

Without ``--model``, seconds are those of a cost model, alike on every machine: a step takes 8 ms, 25 µs more for each
token of a prompt and 50 µs for each sequence that decodes. With it, the engine's runner computes, in real seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from benchmarks.replay import BASE, DECODE, PREFILL, percentile
from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, SamplerOutput
from engine.core.prefill_budget import Parts, PrefillBudget
from engine.core.prefill_chunk import PrefillChunkController
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler

LOAD = 0.7
"""Of the time, that long prompts alone would take."""
MAX_ITL_RATIO = 2.0


class InTurn(PrefillBudget):
    """All tokens for the first, what it leaves for the second, and so on."""

    def divide(self, tokens: int, *, admitting: bool = True) -> Parts:
        parts = Parts()
        for request in self._queues.running:
            if request.missing > 1:
                parts.tokens[request.id] = min(request.missing, tokens)
                tokens -= parts.tokens[request.id]
        return parts


class Machine(Protocol):
    scheduler: Scheduler

    def now(self) -> float: ...

    def wait(self, until: float) -> None: ...

    def execute(self, plan: Plan) -> SamplerOutput: ...


class CostModel:
    def __init__(self, budget: int) -> None:
        self.clock = 0.0
        self.scheduler = Scheduler(
            BlockPool(50_000),
            block_size=16,
            max_num_seqs=64,
            max_batched_tokens=budget,
            max_model_len=40_000,
            max_waiting=100_000,
            clock=lambda: self.clock,
        )

    def now(self) -> float:
        return self.clock

    def wait(self, until: float) -> None:
        self.clock = max(self.clock, until)

    def execute(self, plan: Plan) -> SamplerOutput:
        decoding = sum(scheduled.generating for scheduled in plan.requests)
        self.clock += BASE + PREFILL * (plan.tokens - decoding) + DECODE * decoding
        return SamplerOutput({one.request_id: [0] for one in plan.requests if one.sampling is not None})


class RealModel:
    def __init__(self, model: str, budget: int) -> None:
        from engine.config import EngineConfig
        from engine.offline import OfflineEngine
        from engine.weights.source import locate

        config = EngineConfig(
            model=locate(model),
            max_num_seqs=64,
            max_batched_tokens=budget,
            max_model_len=8192,
            kv_cache_blocks=3000,
        )
        self._engine = OfflineEngine(config, prefix_caching=True)
        self.scheduler = self._engine.scheduler

    def now(self) -> float:
        return time.monotonic()

    def wait(self, until: float) -> None:
        time.sleep(max(0.0, until - time.monotonic()))

    def execute(self, plan: Plan) -> SamplerOutput:
        return self._engine.runner.execute(plan)


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    tokens: int
    generate: int = 0
    """0: as many as all."""


class Run:
    """Of one machine; ids and prompts are never used twice."""

    def __init__(self, machine: Machine, generate: int) -> None:
        self._machine = machine
        self._generate = generate
        self._rng = Random(1)
        self._number = 0

    def ttft(self, arrivals: list[Arrival], *, in_turn: bool = False) -> list[tuple[int, float]]:
        """(tokens of the prompt, seconds to its first token) of each."""
        machine, scheduler = self._machine, self._machine.scheduler
        divided = scheduler._prefill
        if in_turn:
            scheduler._prefill = InTurn(
                scheduler.queues, scheduler._tables, scheduler._admission, chunked=True
            )
        chunks = PrefillChunkController(MAX_ITL_RATIO, scheduler.max_batched_tokens)
        began, following = machine.now(), 0
        submitted: dict[int, Request] = {}
        found = []
        while following < len(arrivals) or submitted:
            if scheduler.idle:
                machine.wait(began + arrivals[following].at)
            while following < len(arrivals) and began + arrivals[following].at <= machine.now():
                new = self._request(arrivals[following], began)
                submitted[new.id] = new
                scheduler.submit(new)
                following += 1
            scheduler.prefill_chunk = chunks.chunk(scheduler.num_prefills)
            started = machine.now()
            plan = scheduler.schedule()
            outputs = scheduler.update(plan, machine.execute(plan))
            seconds = machine.now() - started
            decoded = sum(scheduled.generating for scheduled in plan.requests)
            chunks.observe(seconds, prefill_tokens=plan.tokens - decoded, decode_tokens=decoded)
            for output in outputs:
                request = submitted.pop(output.request_id, None)
                if request is not None:
                    found.append((request.prompt_length, machine.now() - request.submitted))
        for request in (*scheduler.running, *scheduler.waiting):
            scheduler.abort(request.id)
        scheduler._prefill = divided
        return found

    def _request(self, arrival: Arrival, began: float) -> Request:
        self._number += 1
        prompt = self._rng.choices(range(1000, 30_000), k=arrival.tokens)
        params = SamplingParams(arrival.generate or self._generate, temperature=0)
        return Request(self._number, prompt, params, submitted=began + arrival.at)


def stream(tokens: int, rate: float, seconds: float, seed: int) -> list[Arrival]:
    rng, at, found = Random(seed), 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds:
        found.append(Arrival(at, tokens))
    return found


def measure(
    machine: Machine, long: int, short: int, generate: int, longs: int
) -> list[dict[str, float | str]]:
    run = Run(machine, generate)
    alone = min(run.ttft([Arrival(0.0, long)])[0][1] for _ in range(2))
    rate, seconds = LOAD / alone, longs * alone / LOAD
    mixed = [*stream(long, rate, seconds, 2), *stream(short, 2 * rate, seconds, 3)]
    mixed.sort(key=lambda arrival: arrival.at)
    decoding = [Arrival(0.0, short, generate=5_000), Arrival(alone / 10, long)]

    def long_seconds(arrivals: list[Arrival], in_turn: bool) -> float:
        return next(seconds for tokens, seconds in run.ttft(arrivals, in_turn=in_turn) if tokens == long)

    usual = long_seconds(decoding, True)
    beside = [*decoding, *stream(short, 8 / usual, usual, 4)]
    beside.sort(key=lambda arrival: arrival.at)
    rows: list[dict[str, float | str]] = []
    for name, in_turn in (("in turn", True), ("divided", False)):
        found = run.ttft(mixed, in_turn=in_turn)
        row: dict[str, float | str] = {"prompts": name, "alone_s": alone}
        for kind, length in (("short", short), ("long", long)):
            times = [seconds for tokens, seconds in found if tokens == length]
            row |= {f"{kind}_p50_s": percentile(times, 0.5), f"{kind}_p99_s": percentile(times, 0.99)}
        row["relative"] = long_seconds(beside, in_turn) / usual
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a model to compute with, instead of the cost model")
    parser.add_argument("--long", type=int, help="tokens (7,000, and 2,000 with a model)")
    parser.add_argument("--short", type=int, default=30, help="tokens")
    parser.add_argument("--generate", type=int, default=20, help="tokens of each answer")
    parser.add_argument("--longs", type=int, default=40, help="how many long prompts, about")
    parser.add_argument("--budget", type=int, default=512, help="tokens a step")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    machine: Machine = RealModel(given.model, given.budget) if given.model else CostModel(given.budget)
    long = given.long or (2000 if given.model else 7000)
    rows = measure(machine, long, given.short, given.generate, given.longs)
    print(f"{given.short} tokens among prompts of {long}, which take {rows[0]['alone_s']:.2f} s alone\n")
    print("| prompts | short: TTFT p50 | p99 | long: p50 | p99 | long beside short ones, relative |")
    print("|---|--:|--:|--:|--:|--:|")
    for row in rows:
        print(
            "| {prompts} | {short_p50_s:.2f} s | {short_p99_s:.2f} s | {long_p50_s:.2f} s | {long_p99_s:.2f} s "
            "| {relative:.2f} |".format(**row)
        )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
