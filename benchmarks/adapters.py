"""What does it cost that LoRA adapters take turns in slots? Zipf traffic, without HTTP.

    python -m benchmarks.adapters [--model demo] [--adapters 500] [--slots 8] [--memory 32] [--requests 400]

base           all requests for the base model
few            the adapters are as many as the slots
all in slots   all adapters have a slot
in memory      more adapters than slots, all in host memory
on disk        more adapters than slots, --memory of them in host memory

Tokens, prompts' and answers', by second and by second of processor time (all threads, reading included); requests
admitted whose adapter had a slot, copies into slots, reads, and the seconds to the first token at the median and the
99th percentile.
Requests come ``--rate`` a step; the k-th adapter is asked for 1 / k as often as the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from safetensors.torch import save_file

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.offline import OfflineEngine
from engine.weights.source import locate
from engine.worker.runner import Runner

PROMPT, ANSWER = 48, 24
"""Tokens."""
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")


class Variant(NamedTuple):
    name: str
    adapters: int
    slots: int
    memory: int


def write_adapters(folder: Path, model: Path, count: int, rank: int) -> list[Path]:
    """Random ones for the model's attention."""
    runner = Runner(EngineConfig(model=model, kv_cache_blocks=64, max_adapters=1))
    if runner.adapters is None:
        raise SystemExit("there are no layers to adapt")
    shapes = [
        (name, out, inputs)
        for name, (out, inputs) in runner.adapters.shapes.items()
        if name.rpartition(".")[2] in TARGETS
    ]
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(TARGETS)}
    found = []
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        tensors = {}
        for name, out, inputs in shapes:
            for part, shape in (("A", (rank, inputs)), ("B", (out, rank))):
                numbers = torch.randn(shape, generator=generator) * (0.1 / shape[1] ** 0.5)
                tensors[f"base_model.model.{name}.lora_{part}.weight"] = numbers.bfloat16()
        path = folder / str(number)
        path.mkdir()
        (path / "adapter_config.json").write_text(json.dumps({**config, "bias": "none"}))
        save_file(tensors, path / "adapter_model.safetensors")
        found.append(path)
    return found


def measure(variant: Variant, model: Path, folders: list[Path], requests: int, rate: int, seed: int) -> str:
    count = variant.adapters
    engine = OfflineEngine(
        EngineConfig(
            model=model,
            kv_cache_blocks=2000,
            max_num_seqs=32,
            max_batched_tokens=256,
            adapters=tuple((str(number), folders[number]) for number in range(count)),
            max_adapters=variant.slots,
            max_cpu_adapters=variant.memory if count else None,
        )
    )
    rng = Random(seed)
    ranks = rng.choices(range(count), [1 / (1 + rank) for rank in range(count)], k=requests) if count else []
    asked = [
        ([rng.randrange(5, 200) for _ in range(PROMPT)], SamplingParams(ANSWER, temperature=0))
        for _ in range(requests)
    ]
    names = [str(rank) for rank in ranks] or [None] * requests
    before = time.process_time()
    seconds, answers = engine.generate(asked, rate=rate, adapters=names)
    processor = time.process_time() - before
    tokens = sum(PROMPT + len(answer.tokens) for answer in answers)
    firsts = [answer.times[0] for answer in answers]
    slots, reads = engine.scheduler.adapters, engine.adapter_reads
    moved = (slots.hits, slots.swaps, reads) if slots is not None else (0, 0, 0)
    engine.close()
    p50, p99 = statistics.median(firsts), statistics.quantiles(firsts, n=100)[98]
    cells = [variant.name, f"{tokens / seconds:,.0f}", f"{tokens / processor:,.0f}", *map(str, moved)]
    return "| " + " | ".join([*cells, f"{p50:.2f}", f"{p99:.2f}"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--adapters", type=int, default=500)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--memory", type=int, default=32)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rate", type=int, default=1)
    parser.add_argument("--rank", type=int, default=8)
    options = parser.parse_args()
    model, many, slots = locate(options.model), options.adapters, options.slots
    variants = [
        Variant("base", 0, 0, 0),
        Variant("few", slots, slots, slots),
        Variant("all in slots", many, many, many),
        Variant("in memory", many, slots, many),
        Variant("on disk", many, slots, options.memory),
    ]
    with tempfile.TemporaryDirectory() as folder:
        folders = write_adapters(Path(folder), model, many, options.rank)
        print("| | tokens/s | a processor's second | hits | swaps | reads | TTFT p50 | p99 |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
        for variant in variants:
            print(measure(variant, model, folders, options.requests, options.rate, seed=1), flush=True)


if __name__ == "__main__":
    main()
