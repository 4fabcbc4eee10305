"""The runner with weights in fewer bits: what is promised of rows holds for tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.plan import Plan, ScheduledRequest
from engine.core.sampling_params import SamplingParams
from engine.errors import UnsupportedModel
from engine.worker.runner import Runner

GREEDY = SamplingParams(max_tokens=9, temperature=0.0)


def generate(runner: Runner, prompts: list[list[int]], chunk: int, count: int = 8) -> list[list[int]]:
    """Greedy tokens of all prompts side by side; prompts are computed in chunks."""
    rows = [list(prompt) for prompt in prompts]
    done = [0] * len(rows)
    while any(len(row) < len(prompt) + count for row, prompt in zip(rows, prompts, strict=True)):
        scheduled = []
        for i, row in enumerate(rows):
            tokens = row[done[i] : done[i] + chunk]
            last = done[i] + len(tokens) == len(row)
            blocks = list(range(8 * i, 8 * i + 8))
            sampling = GREEDY if last else None
            scheduled.append(
                ScheduledRequest(
                    i, tokens, done[i], blocks, sampling, last, history=row, prompt_length=len(prompts[i])
                )
            )
            done[i] += len(tokens)
        for i, tokens in runner.execute(Plan(scheduled)).tokens.items():
            rows[i] += tokens
    return [row[len(prompt) : len(prompt) + count] for row, prompt in zip(rows, prompts, strict=True)]


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_tokens_do_not_depend_on_neighbours_or_chunks(tiny_model: Path, quantization: str) -> None:
    config = EngineConfig(model=tiny_model, kv_cache_blocks=64, threads=1, quantization=quantization)
    if quantization == "int4":
        config = replace(config, deterministic=True)
    runner = Runner(config)
    prompts = [[40 + (7 * i * j) % 50 for j in range(20 + 20 * i)] for i in range(1, 4)]
    alone = [generate(runner, [prompt], 100)[0] for prompt in prompts]
    assert generate(runner, prompts, 100) == alone
    assert generate(runner, prompts, 13) == alone
    assert len({tuple(tokens) for tokens in alone}) > 1


def test_a_method_for_other_hardware_is_refused(tiny_model: Path) -> None:
    with pytest.raises(UnsupportedModel, match="take int8"):
        Runner(EngineConfig(model=tiny_model, kv_cache_blocks=64, device="cpu", quantization="fp8"))
