"""How often does the engine refuse a request that would have met its deadline? Recorded arrivals, in virtual time.

    python -m benchmarks.deadlines [--requests 4000] [--load 1.3] [--json FILE]

The traces and the cost of a step are those of ``benchmarks.replay``, arrivals so fast that requests wait. Each request
has a deadline between 1 and 60 s away, drawn at random, and a ``max_tokens`` of 2,048: how long its answer will be,
only the trace knows. One in four of those that would be refused is let in after all, to see what becomes of it.

refused   part of all requests that is refused when it comes
wrong     part of those let in after all that was done by its deadline
late      part of the others let in that was not: it was dropped in the queue, or done later

Each trace runs twice: by the mean, as the engine refused before, when the estimate was later than the deadline; and
with the learnt distribution of what requests took, when they meet it with a probability of less than 5 %. The
second table is the calibration: of the requests that were finished, the part that was done by the time by which 5, 10,
25, 50, 75, 90 % were predicted to be.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

from benchmarks.replay import ANSWER, DATA, SPEED, Arrival, Replay, made_up, traces
from engine.core.latency_estimator import LatencyEstimator
from engine.core.plan import RequestOutput
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import DeadlineUnreachable

STOP = ANSWER - 1
MAX_TOKENS = 2048
KNOWN = 200
"""Requests that are not counted: nothing is known yet."""
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)


class Mean(LatencyEstimator):
    def soonest(self, kind: tuple[str | None, int], estimated: float, chance: float = 0.0) -> float:
        return estimated


class Deadlines(Replay):
    def __init__(self, arrivals: list[Arrival], *, learnt: bool, **options: float) -> None:
        super().__init__(arrivals, **options)
        if not learnt:
            self.scheduler.intake.latency = Mean(self.scheduler.max_num_seqs)
        self._lengths: dict[int, int] = {}
        self._deadline: dict[int, float] = {}
        self._let_in: set[int] = set()
        self.counts = dict.fromkeys(("asked", "refused", "let_in", "wrong", "admitted", "late"), 0)
        self._predicted: dict[int, list[float]] = {}
        self.done_by = dict.fromkeys(LEVELS, 0)
        self.predictions = 0

    def _submit(self, number: int, arrival: Arrival) -> None:
        chance, scheduler = Random(number), self.scheduler
        at = arrival.at / self._speed
        deadline = at + math.exp(chance.uniform(0.0, math.log(60)))
        params = SamplingParams(MAX_TOKENS, stop_token_ids=frozenset({STOP}))
        self._lengths[number] = min(arrival.generate, MAX_TOKENS)
        self._deadline[number] = deadline
        counted = number >= KNOWN
        request = Request(number, arrival.prompt, params, submitted=at, deadline=deadline)
        self.counts["asked"] += counted
        try:
            scheduler.submit(request)
            self.counts["admitted"] += counted
        except DeadlineUnreachable:
            self.counts["refused"] += counted
            if chance.random() >= 0.25:
                return
            self.counts["let_in"] += counted
            self._let_in.add(number)
            request = Request(number, arrival.prompt, params, submitted=at)
            scheduler.submit(request)
        self._track(number, arrival, request)
        if counted:
            soonest = [scheduler.latency.soonest(request.kind, request.estimated, level) for level in LEVELS]
            if all(soonest):
                self._predicted[number] = [at + seconds for seconds in soonest]

    def _token(self, number: int, generated: int) -> int:
        return STOP if generated + 1 >= self._lengths[number] else ANSWER

    def _expired(self, number: int) -> None:
        self.counts["late"] += number >= KNOWN
        self._predicted.pop(number, None)

    def _took(self, output: RequestOutput) -> None:
        number = output.request_id
        if output.finish is None or number < KNOWN:
            return
        met = self.now <= self._deadline[number]
        if number in self._let_in:
            self.counts["wrong"] += met
        else:
            self.counts["late"] += not met
        if predicted := self._predicted.pop(number, None):
            self.predictions += 1
            for level, seconds in zip(LEVELS, predicted, strict=True):
                self.done_by[level] += self.now <= seconds


def measure(name: str, arrivals: list[Arrival], load: float, learnt: bool) -> dict[str, Any]:
    one = Deadlines(arrivals, learnt=learnt, speed=load * SPEED.get(name, 1.0))
    one.run()
    return {"trace": name, **outcome(one, learnt=learnt)}


class Counted(Protocol):
    counts: dict[str, int]
    done_by: dict[float, int]
    predictions: int


def outcome(one: Counted, *, learnt: bool) -> dict[str, Any]:
    counts = one.counts
    return {
        "refusal": "learnt" if learnt else "mean",
        "refused": counts["refused"] / max(1, counts["asked"]),
        "tried": counts["let_in"],
        "wrong": f"{counts['wrong'] / counts['let_in']:.1%}" if counts["let_in"] else "none",
        "late": counts["late"] / max(1, counts["admitted"]),
        "done_by": {level: found / max(1, one.predictions) for level, found in one.done_by.items()},
    }


def print_calibration(rows: Sequence[dict[str, Any]]) -> None:
    print("\n| predicted |", " | ".join(f"{level:.0%}" for level in LEVELS), "|")
    print("|---|" + "--:|" * len(LEVELS))
    for row in rows:
        print(f"| {row['trace']} |", " | ".join(f"{row['done_by'][level]:.1%}" for level in LEVELS), "|")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=4000, help="of each trace")
    parser.add_argument(
        "--load", type=float, default=1.3, help="arrivals, relative to those of benchmarks.replay"
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = traces(given.data, given.requests)
    if not found:
        print(f"No traces in {given.data}: a made-up one is replayed.\n")
        found = {"made up": made_up(given.requests)}
    rows = []
    print("| trace | refused by | refused | wrong (of tried) | late |\n|---|---|--:|--:|--:|")
    for name, arrivals in found.items():
        for learnt in (False, True):
            row = measure(name, arrivals, given.load, learnt)
            print(
                "| {trace} | {refusal} | {refused:.1%} | {wrong} ({tried}) | {late:.1%} |".format(**row),
                flush=True,
            )
            rows.append(row)
    print_calibration([row for row in rows if row["refusal"] == "learnt"])
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
