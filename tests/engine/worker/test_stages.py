"""Layers over stages, experts over ranks, and few KV heads, as real processes on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.errors import UnsupportedModel
from engine.models.registry import load_model
from engine.parallel.group import TPGroup
from engine.parallel.layout import Layout, Stage
from engine.parallel.part import Part
from engine.weights.safetensors import SafetensorsReader
from engine.worker.pipelined_runner import start_runner
from engine.worker.runner import Runner
from tests.engine.models.hub import CPU, LATENT_MOE, LLAMA4, save
from tests.engine.steps import Outcome, run
from tests.sampling import slow

GREEDY = SamplingParams(max_tokens=10, temperature=0)
SEEDED = SamplingParams(max_tokens=10, temperature=0.8, seed=5)
SCORED = SamplingParams(max_tokens=3, temperature=0, logprobs=2, prompt_logprobs=1)
PENALISED = SamplingParams(max_tokens=10, temperature=0.7, seed=9, frequency_penalty=0.5)


@contextmanager
def started(model: Path, **options: Any) -> Iterator[Runner]:
    runner = start_runner(EngineConfig(model=model, kv_cache_blocks=60, threads=1, **options))
    try:
        yield runner
    finally:
        runner.ranks.close()


def requests() -> list[tuple[list[int], SamplingParams]]:
    """Short ones, one that takes several steps, and the same once more."""
    text = [(7 * i * i + 3 * i) % 300 + 2 for i in range(60)]
    return [
        (text[:9], GREEDY),
        (text[20:53], SEEDED),
        (text, GREEDY),
        (text[5:25], SCORED),
        (text, SEEDED),
        (text[:3], PENALISED),
    ]


def traced(runner: Runner, **options: Any) -> tuple[Outcome, dict[int, Tensor]]:
    """And the logits that each request's tokens were drawn from."""
    seen: dict[int, list[Tensor]] = {}
    sample = runner._sampler.sample

    def watched(logits: Tensor, rows: Any, *more: Any) -> Tensor:
        for row, line in zip(rows, logits, strict=True):
            seen.setdefault(row.request_id, []).append(line.clone())
        return sample(logits, rows, *more)

    runner._sampler.sample = watched  # type: ignore[method-assign]
    try:
        outcome = run(runner, requests(), budget=20, sequences=4, late=2, **options)
    finally:
        runner._sampler.sample = sample  # type: ignore[method-assign]
    return outcome, {request: torch.stack(lines) for request, lines in seen.items()}


def agree(model: Path, **options: Any) -> Outcome:
    alone = Runner(EngineConfig(model=model, kv_cache_blocks=60, threads=1))
    expected, truth = traced(alone)
    long = SamplingParams(max_tokens=40, temperature=0)
    crowd = [(prompt[:12], long) for prompt, _ in requests()[:5]]
    with started(model, **options) as runner:
        found, logits = traced(runner)
        pressed = run(runner, crowd, blocks=8)
    assert pressed.preempted > 0
    assert pressed.tokens == run(alone, crowd).tokens
    assert found.tokens == expected.tokens
    assert found.hit_tokens > 0
    for request, lines in truth.items():
        assert (logits[request] - lines).abs().max() <= 1e-4
    assert found.logprobs.keys() == expected.logprobs.keys()
    return found


MOE: dict[str, Any] = {"num_local_experts": 4, "num_hidden_layers": 4}


def test_two_stages_say_what_one_rank_says(tmp_path: Path) -> None:
    """Each in a step of its own: while one computes, the other does."""
    save(tmp_path, "Qwen3", head_dim=16, tie_word_embeddings=True)
    assert agree(tmp_path, pipeline_parallel=2).ahead > 0


def test_four_ranks_with_stages_and_experts_say_what_one_says(tmp_path: Path) -> None:
    save(tmp_path, "Mixtral", **MOE)
    agree(tmp_path, tensor_parallel=2, pipeline_parallel=2, expert_parallel=2)


@pytest.mark.parametrize(
    ("family", "changes", "options"),
    slow(
        ("DeepseekV3", LATENT_MOE, {"pipeline_parallel": 2}),
        ("DeepseekV3", LATENT_MOE, {"tensor_parallel": 2, "expert_parallel": 2}),
        ("Gemma3Text", {"head_dim": 16, "sliding_window": 9}, {"pipeline_parallel": 2}),
        ("Phi3", {}, {"pipeline_parallel": 2}),
        ("Llama4Text", LLAMA4, {"pipeline_parallel": 2}),
        (
            "Qwen2Moe",
            {"num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 32},
            {"tensor_parallel": 2, "expert_parallel": 2},
        ),
    ),
)
def test_families_are_divided_too(
    tmp_path: Path, family: str, changes: dict[str, Any], options: dict[str, int]
) -> None:
    """Latents, windows, chunks, fused projections, experts that every token uses."""
    save(tmp_path, family, **changes)
    agree(tmp_path, **options)


@pytest.mark.parametrize("size", [2, *slow(4)])
def test_ranks_share_a_kv_head_and_four_experts(tmp_path: Path, size: int) -> None:
    save(tmp_path, "Mixtral", **MOE, num_key_value_heads=size // 2)
    agree(tmp_path, tensor_parallel=size, expert_parallel=size)


@pytest.mark.parametrize(
    ("family", "changes", "part", "named"),
    [
        ("Llama", {}, Part(stage=Stage(0, 4)), "3 layers, too few for 4 stages"),
        (
            "Lfm2",
            {"layer_types": ["conv", "full_attention", "conv"]},
            Part(stage=Stage(1, 2)),
            "keep a state",
        ),
        ("Llama", {}, Part(TPGroup(0, 2), experts=True), "no experts to divide: leave out --expert-parallel"),
        ("Mixtral", {"num_local_experts": 3}, Part(TPGroup(0, 2), experts=True), "cannot share 3 experts"),
        (
            "Llama",
            {"num_attention_heads": 8, "num_key_value_heads": 4},
            Part(TPGroup(0, 6)),
            "6 ranks cannot share",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(
    tmp_path: Path, family: str, changes: dict[str, Any], part: Part, named: str
) -> None:
    save(tmp_path, family, **changes)
    with pytest.raises(UnsupportedModel, match=named):
        load_model(tmp_path, CPU, torch.float32, part=part)


def test_a_rank_reads_its_part_alone(tmp_path: Path) -> None:
    """And nothing of it is missed: what a rank does not read, others do."""
    save(tmp_path, "Mixtral", **MOE)
    read: list[int] = []
    whole = bytes_read(tmp_path, Part())
    for rank in range(4):
        layout = Layout(2, 2)
        tp, stage = TPGroup(layout.shard(rank), 2), Stage(layout.stage(rank), 2)
        read.append(bytes_read(tmp_path, Part(tp, stage, experts=True, vocabulary=True)))
    # Norms and routers are on each rank of a stage.
    assert whole < sum(read) < 1.05 * whole
    assert max(read) < 0.4 * whole


def bytes_read(folder: Path, part: Part) -> int:
    total = 0

    class Reader(SafetensorsReader):
        def _count(self, name: str, tensor: Tensor) -> None:
            nonlocal total
            total += tensor.nbytes
            super()._count(name, tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.models.registry.SafetensorsReader", Reader)
        load_model(folder, CPU, torch.float32, part=part)
    return total
