"""The demo model under 32 requests of mixed lengths: the engine, and transformers' ``generate``.

    python -m benchmarks.transformers_generate [--requests 32] [--repeats 5] [--json FILE]

Both in this process, float32, greedy, one thread (what the engine takes for a model of this size), the same prompts,
each answer exactly as long as asked. transformers is timed as its users run it: one padded batch of all requests, which
goes on until its longest answer is done, and one request after the other. Its tokens are compared with the engine's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from random import Random

import torch
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig
from engine.core.block_pool import BlockPool
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.weights.source import locate
from engine.worker.runner import Runner

PAD = 0


def make_requests(count: int, vocab: int) -> list[tuple[list[int], int]]:
    """(prompt, tokens to generate): prompts of 8 to 256 tokens, answers of 16 to 256."""
    random = Random(0)
    return [
        ([random.randrange(10, vocab) for _ in range(random.randint(8, 256))], random.randint(16, 256))
        for _ in range(count)
    ]


def engine(runner: Runner, requests: list[tuple[list[int], int]]) -> tuple[float, list[list[int]]]:
    scheduler = Scheduler(
        BlockPool(runner.cache.blocks),
        block_size=runner.block_size,
        max_num_seqs=64,
        max_batched_tokens=512,
        max_model_len=runner.max_model_len,
        max_waiting=1000,
        windows=runner.windows,
    )
    began = time.perf_counter()
    for number, (prompt, count) in enumerate(requests):
        scheduler.submit(Request(number, prompt, SamplingParams(max_tokens=count, temperature=0)))
    answers: list[list[int]] = [[] for _ in requests]
    while not scheduler.idle:
        plan = scheduler.schedule()
        for output in scheduler.update(plan, runner.execute(plan)):
            answers[output.request_id] += output.tokens
    return time.perf_counter() - began, answers


@torch.inference_mode()
def batched(model: torch.nn.Module, requests: list[tuple[list[int], int]]) -> tuple[float, list[list[int]]]:
    began = time.perf_counter()
    width, longest = max(len(prompt) for prompt, _ in requests), max(count for _, count in requests)
    ids = torch.full((len(requests), width), PAD)
    mask = torch.zeros_like(ids)
    for row, (prompt, _) in enumerate(requests):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    out = generate(model, ids, mask, longest)
    answers = [out[row, width : width + count].tolist() for row, (_, count) in enumerate(requests)]
    return time.perf_counter() - began, answers


@torch.inference_mode()
def one_by_one(
    model: torch.nn.Module, requests: list[tuple[list[int], int]]
) -> tuple[float, list[list[int]]]:
    began = time.perf_counter()
    answers = []
    for prompt, count in requests:
        ids = torch.tensor([prompt])
        answers.append(generate(model, ids, torch.ones_like(ids), count)[0, len(prompt) :].tolist())
    return time.perf_counter() - began, answers


def generate(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, count: int) -> torch.Tensor:
    # No end token: every answer is as long as asked, as the engine's are.
    return model.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        min_new_tokens=count,
        max_new_tokens=count,
        eos_token_id=None,
        pad_token_id=PAD,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = locate("demo")
    runner = Runner(EngineConfig(model=folder, threads=1))
    runner.warm_up()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    requests = make_requests(options.requests, runner.model.vocab_size)
    total = sum(count for _, count in requests)
    speeds: dict[str, list[float]] = {"engine": [], "batched": [], "one by one": []}
    same = 0.0
    for _ in range(options.repeats):
        seconds, ours = engine(runner, requests)
        speeds["engine"].append(total / seconds)
        for name, run in (("batched", batched), ("one by one", one_by_one)):
            seconds, theirs = run(model, requests)
            speeds[name].append(total / seconds)
        same = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(requests)
    for name, figures in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(speeds["engine"], figures, strict=True))
        print(
            f"{name:12} {statistics.median(figures):8.0f} tokens/s   the engine is {ratio:.2f} times as fast"
        )
    print(f"answers equal to those of transformers one by one: {100 * same:.0f} %")
    if options.json:
        options.json.write_text(json.dumps(speeds | {"equal": [same]}, indent=1))


if __name__ == "__main__":
    main()
