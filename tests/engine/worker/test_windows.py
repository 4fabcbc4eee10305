"""Models with sliding windows at eight times their window: tokens are those of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.config import EngineConfig
from engine.core.block_demand import BlockDemand
from engine.core.sampling_params import SamplingParams
from engine.errors import UnsupportedModel
from engine.models.registry import load_model
from engine.parallel.group import TPGroup
from engine.parallel.part import Part
from engine.worker.runner import Runner
from tests.engine.models.hub import CPU, GEMMA3N, LLAMA4, greedy, save
from tests.engine.steps import Outcome, run

WINDOW = 13
"""Not a multiple of any block size."""
GREEDY = SamplingParams(max_tokens=30, temperature=0)
MODELS: dict[str, tuple[str, dict[str, Any], list[int | None]]] = {
    "all layers": ("Mistral", {"sliding_window": WINDOW}, [WINDOW]),
    "both kinds": (
        "Gemma3Text",
        {"head_dim": 16, "sliding_window": WINDOW, "num_hidden_layers": 6},
        [None, *[WINDOW] * 5],
    ),
    "sinks": (
        "GptOss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "sliding_window": WINDOW,
            "num_hidden_layers": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        },
        [None, WINDOW],
    ),
    "chunks": (
        "Llama4Text",
        {**LLAMA4, "attention_chunk_size": 16, "num_hidden_layers": 4, "interleave_moe_layer_step": 2},
        [None, 16, 16, 16],
    ),
    "shared keys": (
        "Gemma3nText",
        {**GEMMA3N, "sliding_window": WINDOW},
        # The last three layers read what the second and the third have.
        [None, WINDOW, WINDOW],
    ),
    "two full groups": (
        "Qwen2",
        {
            "sliding_window": WINDOW,
            "use_sliding_window": True,
            "max_window_layers": 2,
            "num_hidden_layers": 3,
        },
        [None, None, WINDOW],
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    family, changes, windows = MODELS[request.param]
    folder = tmp_path_factory.mktemp("windows")
    return folder, save(folder, family, **changes), windows


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 320, (length,), generator=generator).tolist()


LONG = 8 * WINDOW - GREEDY.max_tokens
PROMPTS = [prompt(LONG, 0), prompt(5, 1), prompt(LONG, 0)[: LONG - 9] + prompt(4, 2), prompt(40, 3)]


def runner_of(folder: Path, **options: Any) -> Runner:
    made = Runner(EngineConfig(**{"model": folder, "threads": 1, "kv_cache_blocks": 400, **options}))
    made.warm_up()
    return made


def ask(runner: Runner, **options: Any) -> Outcome:
    requests = [(tokens, GREEDY) for tokens in PROMPTS]
    return run(runner, requests, **{"sequences": 4, "budget": 24, "late": 3, **options})


def check(
    outcome: Outcome, model: transformers.PreTrainedModel, prompts: Sequence[list[int]] = PROMPTS
) -> None:
    for i, tokens in enumerate(prompts):
        answer = outcome.tokens[i]
        assert answer == greedy(model, tokens, answer)
        assert len(answer) >= GREEDY.max_tokens


@pytest.mark.parametrize("block_size", [4, 16])
def test_tokens_are_those_of_transformers(saved, block_size: int) -> None:
    folder, model, windows = saved
    runner = runner_of(folder, block_size=block_size)
    assert runner.windows == windows
    check(ask(runner), model)
    # Prompts come again, and a long one is found but for its end.
    again = ask(runner, late=40)
    assert again.hit_tokens > LONG // 2
    check(again, model)


def test_preempted_requests_say_the_same(saved) -> None:
    folder, model, windows = saved
    runner = runner_of(folder, block_size=4)
    params = SamplingParams(max_tokens=60, temperature=0)
    prompts = [prompt(length, length) for length in (5, 6, 7, 8)]
    blocks = BlockDemand(windows, 4, 24).of(68) + 4
    outcome = run(runner, [(tokens, params) for tokens in prompts], sequences=4, budget=24, blocks=blocks)
    assert outcome.preempted > 0
    check(outcome, model, prompts)


@pytest.mark.parametrize("speculation", ["ngram", "draft"])
def test_speculation_changes_no_token(saved, speculation: str) -> None:
    folder, model, windows = saved
    draft = folder if speculation == "draft" else None
    runner = runner_of(folder, block_size=4, speculation=speculation, draft_model=draft)
    assert runner.windows == ([None] if draft and None not in windows else windows)
    outcome = ask(runner)
    assert runner.speculation is not None and (runner.speculation.accepted > 0 or not draft)
    check(outcome, model)


@pytest.mark.parametrize("stored", ["int8", "fp8"])
def test_a_quantized_cache_says_what_it_says_when_nothing_is_released(saved, stored: str) -> None:
    folder, _, windows = saved
    runner = runner_of(folder, block_size=4, kv_cache_dtype=stored)
    kept = ask(runner, windows=[None] * len(windows))
    assert ask(runner).tokens == kept.tokens


def test_choices_share_a_prompt_beyond_the_window(saved) -> None:
    folder, _, windows = saved
    runner = runner_of(folder, block_size=4)
    kept = ask(runner, choices=3, sequences=12, windows=[None] * len(windows))
    outcome = ask(runner, choices=3, sequences=12)
    assert outcome.copies > 0 and outcome.tokens == kept.tokens


def test_ranks_say_the_same(saved) -> None:
    folder, model, windows = saved
    if isinstance(model, transformers.Gemma3nForCausalLM):
        with pytest.raises(UnsupportedModel, match=r"Gemma 3n does not support.*--tensor-parallel"):
            load_model(folder, CPU, torch.float32, part=Part(TPGroup(0, 2)))
        return
    runner = runner_of(folder, block_size=4, tensor_parallel=2)
    try:
        assert runner.windows == windows
        check(ask(runner), model)
    finally:
        runner.ranks.close()


def test_the_cache_is_as_large_as_windows_need(saved) -> None:
    """Where it is not configured: for all sequences at full length."""
    folder, _, windows = saved
    options = {"kv_cache_blocks": None, "block_size": 4, "max_num_seqs": 2, "max_batched_tokens": 8}
    runner = runner_of(folder, **options)
    each = sum(128 // 4 if window is None else -(-(window - 1 + 8) // 4) + 1 for window in windows)
    assert runner.cache.blocks == 2 * each
    tensors = {id(tensor): tensor for layer in runner.cache.layers for tensor in layer.tensors}
    held = sum(tensor.nbytes for tensor in tensors.values())
    assert held == (runner.cache.blocks + 1) * runner.block_bytes
