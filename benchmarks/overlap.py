"""How long does a step take where the next one is planned and launched while it runs, and where it is not?

    python -m benchmarks.overlap [--sequences 32] [--tokens 100] [--simulate] [--json FILE]

The scheduler and the loop are the engine's. The host spends ``host`` milliseconds on each plan, with what the scheduler
takes, and the device ``device`` milliseconds on each step, in order; both sleep. A step should take host + device
without overlap, and the longer of the two with it. The tokens are compared: each is a function of all before it, and
the device computes on what it sampled itself before the host knows it.

``--simulate``: a clock that stands still but for these sleeps, so that neither the machine nor the scheduler counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from engine.core.block_pool import BlockPool
from engine.core.plan import PENDING, Plan, SamplerOutput
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.step_loop import StepLoop

VOCAB = 1000
PAIRS = ((0.001, 0.008), (0.002, 0.008), (0.004, 0.008), (0.008, 0.008), (0.008, 0.004))
"""Seconds of host and device."""


class Clock(Protocol):
    def now(self) -> float: ...

    def wait(self, until: float) -> None: ...


class RealClock:
    def now(self) -> float:
        return time.perf_counter()

    def wait(self, until: float) -> None:
        time.sleep(max(0.0, until - time.perf_counter()))


class SimulatedClock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait(self, until: float) -> None:
        self.time = max(self.time, until)


@dataclass
class SleepingStep:
    plan: Plan
    done: float
    output: SamplerOutput = field(default_factory=SamplerOutput)


class SleepingRunner:
    """A device that takes the same time for each step, and computes one after the other."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.steps = 0
        self.wasted = 0
        """Tokens that were computed for requests that had ended."""
        self._clock = clock
        self._seconds = seconds
        self._free = 0.0

    def submit(self, plan: Plan, after: SleepingStep | None = None) -> SleepingStep:
        self.steps += 1
        step = SleepingStep(plan, max(self._clock.now(), self._free) + self._seconds)
        self._free = step.done
        if after is None:
            self.sample(step)
            return step
        for one in plan.requests:
            # The device feeds itself; ``sample`` checks the history by it.
            if one.tokens[-1] == PENDING:
                one.tokens[-1] = after.output.tokens[one.request_id][-1]
        return step

    def sample(self, step: SleepingStep, dropped: Collection[int] = ()) -> None:
        # If its logits are there already, the device has waited.
        self._free = step.done = max(step.done, self._clock.now())
        for one in step.plan.requests:
            if one.request_id in dropped:
                self.wasted += len(one.tokens)
            elif one.history[one.start : one.end] != one.tokens:
                raise RuntimeError(f"request {one.request_id} has computed on top of another token")
            elif one.sampling is not None:
                step.output.tokens[one.request_id] = [hash(tuple(one.history)) % VOCAB]

    def collect(self, step: SleepingStep) -> SamplerOutput:
        self._clock.wait(step.done)
        return step.output


@dataclass
class Found:
    seconds: float
    """Of a step."""
    steps: int
    wasted: int
    answers: dict[int, list[int]]


def run(clock: Clock, host: float, device: float, requests: list[Request], *, ahead: bool) -> Found:
    longest = max(request.longest + 1 for request in requests)
    scheduler = Scheduler(
        BlockPool(len(requests) * (longest // 16 + 1)),
        block_size=16,
        max_num_seqs=len(requests),
        max_batched_tokens=8192,
        max_model_len=longest,
        max_waiting=len(requests),
        clock=clock.now,
    )
    runner = SleepingRunner(clock, device)

    def plan() -> Plan:
        until = clock.now() + host
        planned = scheduler.schedule()
        clock.wait(until)
        return planned

    loop = StepLoop(scheduler, runner, ahead=ahead, plan=plan, clock=clock.now)
    answers: dict[int, list[int]] = {request.id: [] for request in requests}
    for request in requests:
        scheduler.submit(request)
    began = clock.now()
    while not scheduler.idle or loop.in_flight:
        landed = loop.step()
        for output in landed.outputs if landed else ():
            answers[output.request_id] += output.tokens
    scheduler.check_integrity()
    if scheduler.pool.used:
        raise RuntimeError("blocks are lost")
    return Found((clock.now() - began) / runner.steps, runner.steps, runner.wasted, answers)


def made_up(sequences: int, tokens: int, stops: frozenset[int] = frozenset()) -> list[Request]:
    params = SamplingParams(tokens, temperature=0, stop_token_ids=stops)
    return [Request(i, [i, *range(30)], params) for i in range(sequences)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=100, help="of each answer")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(f"{given.sequences} sequences of {given.tokens} tokens; milliseconds of a step\n")
    print("| host | device | one after the other | overlapped | tokens |")
    print("|--:|--:|--:|--:|---|")
    rows = []
    for host, device in PAIRS:
        found = {
            ahead: run(
                SimulatedClock() if given.simulate else RealClock(),
                host,
                device,
                made_up(given.sequences, given.tokens),
                ahead=ahead,
            )
            for ahead in (False, True)
        }
        row = {
            "host_ms": 1000 * host,
            "device_ms": 1000 * device,
            "in_turn_ms": 1000 * found[False].seconds,
            "overlapped_ms": 1000 * found[True].seconds,
            "tokens": "the same" if found[False].answers == found[True].answers else "differ",
        }
        rows.append(row)
        print(
            "| {host_ms:.0f} | {device_ms:.0f} | {in_turn_ms:.2f} | {overlapped_ms:.2f} | {tokens} |".format(
                **row
            )
        )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
