"""How long does a step take where the next one is planned and launched while it runs, and where it is not?

    python -m benchmarks.overlap [--sequences 32] [--tokens 100] [--drafts 0] [--simulate] [--json FILE]

The scheduler and the loop are the engine's. The host spends ``host`` milliseconds on each plan, with what the scheduler
takes, and the device ``device`` milliseconds on each step, in order; both sleep. A step should take host + device
without overlap, and the longer of the two with it. The tokens are compared: each is a function of all before it, and
the device computes on what it sampled itself before the host knows it.

``--drafts``: the device proposes so many tokens after each that it samples, seven of ten right, and verifies them in
the next step: how many are accepted, and so where a step begins, it knows before the host.

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
from engine.core.plan import PENDING, Plan, SamplerOutput, ScheduledRequest
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
    inputs: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    """By request: its first position, and its tokens."""
    feed: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    """By request, as the device has it: draft tokens that were rejected, the last token sampled and what may follow."""


class SleepingRunner:
    """A device that takes the same time for each step, and computes one after the other."""

    def __init__(self, clock: Clock, seconds: float, drafts: int = 0) -> None:
        """``drafts``: proposed after each token that is sampled, at most."""
        self.steps = 0
        self.wasted = 0
        """Tokens that were computed for requests that had ended."""
        self._clock = clock
        self._seconds = seconds
        self._drafts = drafts
        self._free = 0.0

    def submit(self, plan: Plan, after: SleepingStep | None = None) -> SleepingStep:
        self.steps += 1
        step = SleepingStep(plan, max(self._clock.now(), self._free) + self._seconds)
        self._free = step.done
        for one in plan.requests:
            start, tokens = one.start, one.tokens
            if after is not None and PENDING in tokens:
                # The device feeds itself; ``sample`` checks the plan and the history by it.
                rejected, fed = after.feed[one.request_id]
                start, tokens = start - rejected, fed[: len(tokens)]
            step.inputs[one.request_id] = start, tokens
        if after is None:
            self.sample(step)
        return step

    def sample(self, step: SleepingStep, dropped: Collection[int] = ()) -> None:
        # If its logits are there already, the device has waited.
        self._free = step.done = max(step.done, self._clock.now())
        for one in step.plan.requests:
            if one.request_id in dropped:
                self.wasted += len(one.tokens)
                continue
            start, tokens = step.inputs[one.request_id]
            real = len(tokens) - one.num_draft_tokens
            if start != one.start or one.history[start : start + real] != tokens[:real]:
                raise RuntimeError(f"request {one.request_id} has computed on top of another token")
            if one.sampling is not None:
                self._answer(step, one, tokens[real:])

    def _answer(self, step: SleepingStep, one: ScheduledRequest, drafts: list[int]) -> None:
        kept = [_next(one.history)]
        for draft in drafts:
            if draft != kept[-1]:
                break
            kept.append(_next([*one.history, *kept]))
        proposed: list[int] = []
        for number in range(min(one.lookahead, self._drafts)):
            right = _next([*one.history, *kept, *proposed])
            proposed.append(right if hash((right, number)) % 10 < 7 else VOCAB)
        step.output.tokens[one.request_id] = kept
        step.output.draft_tokens[one.request_id] = proposed
        step.feed[one.request_id] = len(drafts) + 1 - len(kept), [kept[-1], *proposed]

    def drafts(self, step: SleepingStep) -> dict[int, int]:
        return {number: len(fed) - 1 for number, (_, fed) in step.feed.items()}

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


def _next(history: list[int]) -> int:
    return hash(tuple(history)) % VOCAB


def run(
    clock: Clock, host: float, device: float, requests: list[Request], *, ahead: bool, drafts: int = 0
) -> Found:
    longest = max(request.longest + 1 for request in requests)
    scheduler = Scheduler(
        BlockPool(len(requests) * (longest // 16 + 1)),
        block_size=16,
        max_num_seqs=len(requests),
        max_batched_tokens=8192,
        max_model_len=longest,
        max_waiting=len(requests),
        clock=clock.now,
        max_drafts=drafts,
        feed_drafts=ahead,
    )
    runner = SleepingRunner(clock, device, drafts)

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
    parser.add_argument("--drafts", type=int, default=0, help="draft tokens after each that is sampled")
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
                drafts=given.drafts,
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
