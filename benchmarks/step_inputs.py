"""What do block tables cost the host in a decode step? Written and told anew in each step, or only what has changed.

    python -m benchmarks.step_inputs [--requests 256] [--tokens 8192] [--steps 200]

batch          a plan as tensors in this process's memory, as a CPU reads them
batch, copied  the same, packed for one copy to a device, and its bytes
to a rank      a plan as bytes for another rank, and how many
at the rank    those bytes as a plan

Both ways take each step in turns. Milliseconds are processor time of one thread; the device is PyTorch's ``meta``,
which computes nothing.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from engine.channel import encode
from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, SamplerOutput
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.kv_cache import KVCache, KVShape
from engine.worker.batch import BatchBuilder
from engine.worker.plan_deltas import PlanReceiver, PlanSender

BLOCK = 16
_HEADER = 4
"""Bytes before a message."""


def decodes(requests: int, tokens: int, steps: int) -> Iterator[Plan]:
    """Plans of so many steps after the prompts."""
    scheduler = Scheduler(
        BlockPool(requests * (tokens + steps + 2 * BLOCK) // BLOCK),
        block_size=BLOCK,
        max_num_seqs=requests,
        max_batched_tokens=requests * tokens,
        max_model_len=tokens + steps + BLOCK,
        max_waiting=requests,
        prefix_caching=False,
    )
    for number in range(requests):
        # Their blocks fill at different steps.
        prompt = [number] * (tokens - number % BLOCK)
        scheduler.submit(Request(number, prompt, SamplingParams(max_tokens=steps + BLOCK)))
    for step in range(steps + 1):
        plan = scheduler.schedule()
        if step:
            yield plan
        scheduler.update(plan, SamplerOutput({one.request_id: [1] for one in plan.requests}))


class Way:
    """``keeping``: what has changed; otherwise all."""

    def __init__(self, keeping: bool) -> None:
        self.keeping = keeping
        self.seconds: dict[str, list[float]] = {}
        self.sizes: dict[str, list[int]] = {}
        self._batches = {device: builder(device, keeping) for device in ("cpu", "meta")}
        self._sender, self._receiver = PlanSender(BLOCK), PlanReceiver()

    def step(self, plan: Plan) -> None:
        self._time("batch", lambda: self._batches["cpu"].build(plan))
        self._time("batch, copied", lambda: self._batches["meta"].build(plan))
        if not self.keeping:
            self._sender = PlanSender(BLOCK)
        data = self._time("to a rank", lambda: encode(self._sender.delta(plan)))
        self.sizes.setdefault("to a rank", []).append(len(data))
        self._time("at the rank", lambda: self._receiver.plan(pickle.loads(data[_HEADER:])))

    def _time(self, name: str, run: Callable[[], Any]) -> Any:
        began = time.thread_time()
        found = run()
        self.seconds.setdefault(name, []).append(time.thread_time() - began)
        return found


def builder(device: str, keeping: bool) -> BatchBuilder:
    where = torch.device(device)
    cache = KVCache(KVShape(1, 1, 64), 1, BLOCK, where, torch.float32)
    return BatchBuilder(cache, where, keeping=keeping)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways = anew, kept = Way(False), Way(True)
    for number, plan in enumerate(decodes(options.requests, options.tokens, options.steps)):
        for way in ways[:: 1 if number % 2 else -1]:
            way.step(plan)
    print(f"{options.requests} requests of {options.tokens} tokens, a decode step, median (p99)\n")
    print("|  | anew, ms | what has changed, ms | times |\n|---|---|---|---|")
    for name, before in anew.seconds.items():
        # The first step has everything to write.
        rows = [sorted(1000 * value for value in values[1:]) for values in (before, kept.seconds[name])]
        middle = [statistics.median(row) for row in rows]
        cells = [
            f"{value:.2f} ({row[int(0.99 * len(row))]:.2f})" for value, row in zip(middle, rows, strict=True)
        ]
        print(f"| {name} | {cells[0]} | {cells[1]} | {middle[0] / middle[1]:.1f} |")
    sizes = [statistics.median(way.sizes["to a rank"]) / 1000 for way in ways]
    print(f"| to a rank, kB | {sizes[0]:.0f} | {sizes[1]:.1f} | {sizes[0] / sizes[1]:.0f} |")


if __name__ == "__main__":
    main()
