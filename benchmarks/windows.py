"""What do sliding windows save? Keys and values that one request holds at eight times its model's window.

    python -m benchmarks.windows [--times 8] [--budget 2048]

before   all layers keep all tokens
after    blocks behind a window are released: most, while the prompt is computed, and at the last token
requests how many of that length fit into what one took before

The scheduler runs on the models' shapes, without weights: what it holds is counted, not estimated.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.core.block_demand import BlockDemand
from engine.core.block_pool import BlockPool
from engine.core.plan import SamplerOutput
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.kv_cache import KVShape
from engine.kv_groups import group_layers

BLOCK = 16
ANSWER = 256
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Shape:
    """As in the model's config.json."""

    name: str
    windows: tuple[int | None, ...]
    kv_heads: int
    head_dim: int


def local(layers: int, window: int, period: int) -> tuple[int | None, ...]:
    """Every ``period``-th layer sees everything."""
    return tuple(None if (layer + 1) % period == 0 else window for layer in range(layers))


SHAPES = (
    Shape("Gemma 3 270M", local(18, 512, 6), 1, 256),
    Shape("Gemma 3 1B", local(26, 512, 6), 1, 256),
    Shape("Gemma 3 27B", local(62, 1024, 6), 16, 128),
    Shape("Gemma 2 9B", local(42, 4096, 2), 8, 256),
    Shape("Mistral 7B v0.1", (4096,) * 32, 8, 128),
    Shape("Qwen2.5 0.5B (no window)", (None,) * 24, 2, 64),
)


def held(windows: Sequence[int | None], length: int, budget: int) -> tuple[int, int]:
    """Blocks that a request of ``length`` tokens holds: most, and at its last token."""
    scheduler = Scheduler(
        BlockPool(BlockDemand(windows, BLOCK, budget).of(length)),
        block_size=BLOCK,
        max_num_seqs=1,
        max_batched_tokens=budget,
        max_model_len=length + 1,
        max_waiting=1,
        windows=windows,
    )
    prompt = list(range(length - ANSWER))
    scheduler.submit(Request(0, prompt, SamplingParams(max_tokens=ANSWER)))
    most = last = 0
    while not scheduler.idle:
        plan = scheduler.schedule()
        last = scheduler.running[0].held
        most = max(most, last)
        sampled = {scheduled.request_id: [7] for scheduled in plan.requests if scheduled.sampling}
        scheduler.update(plan, SamplerOutput(sampled))
    return most, last


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=8, help="the context, in windows")
    parser.add_argument("--budget", type=int, default=2048, help="--max-batched-tokens")
    options = parser.parse_args()
    print(f"MiB of keys and values in 16 bits of one request, steps of {options.budget} tokens\n")
    print("| model | groups | window | context | before | most | last token | requests |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for shape in SHAPES:
        window = next((one for one in shape.windows if one), None)
        length = options.times * (window or 4096)
        groups = group_layers(shape.windows, length)
        kv = KVShape(len(shape.windows), shape.kv_heads, shape.head_dim, shape.windows)
        whole = -(-length // BLOCK) * kv.block_bytes(BLOCK, torch.bfloat16)
        block = kv.block_bytes(BLOCK, torch.bfloat16, groups=groups)
        most, last = (count * block for count in held([one.window for one in groups], length, options.budget))
        print(
            f"| {shape.name} | {len(groups)} | {window or '-'} | {length:,} | {whole / MIB:,.0f} "
            f"| {most / MIB:,.0f} | {last / MIB:,.0f} | {whole / last:.1f} |"
        )


if __name__ == "__main__":
    main()
