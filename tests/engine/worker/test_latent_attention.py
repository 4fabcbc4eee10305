"""Multi-head latent attention through the runner and the scheduler: tokens are those of transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.kv_cache import KVShape
from engine.models.registry import read_family
from engine.worker.memory import predict_weights
from engine.worker.runner import Runner
from tests.engine.models.hub import LATENT, LATENT_MOE, Paged, expected, greedy, save
from tests.engine.steps import Outcome, run

Saved = tuple[Path, transformers.PreTrainedModel]
GREEDY = SamplingParams(max_tokens=12, temperature=0)


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(2, 320, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


PROMPTS = [prompt(60, 0), prompt(5, 1), prompt(60, 0)[:50] + prompt(4, 2), prompt(33, 3)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("latent")
    return folder, save(folder, "DeepseekV3", **LATENT_MOE)


def runner_of(folder: Path, **options: Any) -> Runner:
    made = Runner(EngineConfig(**{"model": folder, "threads": 1, "kv_cache_blocks": 200, **options}))
    made.warm_up()
    return made


def ask(runner: Runner, **options: Any) -> Outcome:
    requests = [(tokens, GREEDY) for tokens in PROMPTS]
    return run(runner, requests, **{"sequences": 4, "budget": 24, "late": 2, **options})


def check(outcome: Outcome, model: transformers.PreTrainedModel, prompts: list[list[int]] = PROMPTS) -> None:
    for i, tokens in enumerate(prompts):
        answer = outcome.tokens[i]
        assert answer == greedy(model, tokens, answer)
        assert len(answer) >= GREEDY.max_tokens


@pytest.mark.parametrize("block_size", [4, 16])
def test_tokens_are_those_of_transformers(saved: Saved, block_size: int) -> None:
    """Prompts in chunks beside decodes, and what is found in the cache."""
    folder, model = saved
    runner = runner_of(folder, block_size=block_size)
    outcome = ask(runner)
    assert outcome.largest == 4 and outcome.hit_tokens >= 48
    check(outcome, model)


def test_preempted_requests_and_choices_say_the_same(saved: Saved) -> None:
    folder, model = saved
    runner = runner_of(folder, block_size=4)
    params = SamplingParams(max_tokens=40, temperature=0)
    prompts = [prompt(length, length) for length in (5, 6, 7, 8)]
    outcome = run(runner, [(one, params) for one in prompts], sequences=4, budget=24, blocks=24)
    assert outcome.preempted > 0
    check(outcome, model, prompts)
    choices = run(runner, [(one, params) for one in prompts], sequences=12, budget=24, choices=2)
    assert choices.copies > 0
    assert all(choices.tokens[i] == choices.tokens[i + 1000] == outcome.tokens[i] for i in range(4))


@pytest.mark.parametrize("speculation", ["ngram", "draft"])
def test_speculation_changes_no_token(saved: Saved, speculation: str) -> None:
    folder, model = saved
    draft = folder if speculation == "draft" else None
    runner = runner_of(folder, block_size=4, speculation=speculation, draft_model=draft)
    check(ask(runner), model)
    assert runner.speculation is not None and (runner.speculation.accepted > 0 or not draft)


def test_two_ranks_say_the_same(saved: Saved) -> None:
    """Heads are divided; each rank has the latents."""
    folder, model = saved
    runner = runner_of(folder, tensor_parallel=2)
    try:
        layer = runner.cache.layers[0]
        assert (layer.keys.shape[3], layer.values.shape[3]) == (8, 32)
        check(ask(runner), model)
    finally:
        runner.ranks.close()


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("float32", "int8"),
        ("float32", "fp8"),
        ("bfloat16", "auto"),
        ("bfloat16", "int8"),
        ("bfloat16", "fp8"),
    ],
)
def test_fewer_bits_stay_near(tmp_path: Path, dtype: str, stored: str) -> None:
    """What is said is nearly the likeliest in float32. Without experts: near a tie others would be chosen."""
    model = save(tmp_path, "Youtu", **LATENT)
    runner = runner_of(tmp_path, dtype=dtype, kv_cache_dtype=stored)
    outcome = ask(runner)
    for i, tokens in enumerate(PROMPTS):
        answer = outcome.tokens[i]
        theirs = expected(model, tokens + answer)[len(tokens) - 1 : -1].log_softmax(-1)
        off = theirs.amax(-1) - theirs[range(len(answer)), answer]
        assert off.mean() < 0.1 and off.max() < 0.6


def test_a_checkpoint_in_blocks_of_fp8_is_read_as_what_it_stands_for(tmp_path: Path) -> None:
    """As DeepSeek-V3 and Kimi K2 are published, with what latents are expanded with in 8 bits, too."""
    save(tmp_path / "plain", "DeepseekV3", **LATENT_MOE)
    shutil.copytree(tmp_path / "plain", tmp_path / "fp8")
    plain, stored = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "fp8"))
    for name, weight in list(plain.items()):
        if "_proj" in name:
            stored[name] = weight.to(torch.float8_e4m3fn)
            scales = torch.rand(-(-weight.shape[0] // 32), -(-weight.shape[1] // 32)) + 0.5
            stored[f"{name}_scale_inv"] = scales
            spread = scales.repeat_interleave(32, 0).repeat_interleave(32, 1)
            plain[name] = stored[name].float() * spread[: weight.shape[0], : weight.shape[1]]
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    save_file(stored, tmp_path / "fp8" / "model.safetensors")
    config = json.loads((tmp_path / "fp8" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    (tmp_path / "fp8" / "config.json").write_text(json.dumps(config))
    found, wanted = (Paged(tmp_path / name).run(PROMPTS[0], [20]) for name in ("fp8", "plain"))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-4)  # scales are multiplied in elsewhere


@pytest.mark.parametrize("method", ["int8", "int4"])
def test_weights_in_fewer_bits_and_their_size(tmp_path: Path, method: str) -> None:
    """What latents are expanded with stays plain, and is counted so."""
    save(tmp_path, "Youtu", **LATENT, tie_word_embeddings=False)
    plain, few = Paged(tmp_path).run(PROMPTS[0], []), Paged(tmp_path, quantization=method).run(PROMPTS[0], [])
    near = torch.nn.functional.cosine_similarity(plain, few)
    assert near.mean() > (0.99 if method == "int8" else 0.8)
    expanding = 3 * 4 * (24 + 16) * 32
    whole = load_file(tmp_path / "model.safetensors")
    alone = sum(
        weight.numel()
        for name, weight in whole.items()
        if weight.dim() < 2 or "lm_head" in name or "embed" in name
    )
    others = sum(weight.numel() for weight in whole.values()) - alone - expanding
    bits = {"int8": 8.03, "int4": 5.0}[method]
    predicted = predict_weights(tmp_path, torch.bfloat16, method)
    assert predicted == pytest.approx(2 * (alone + expanding) + others * bits / 8, rel=1e-3)


def test_a_tokens_bytes_are_those_of_its_latents() -> None:
    """DeepSeek-V3 keeps 512 + 64 numbers a layer, whatever the number of its heads."""
    config = read_family(
        "DeepseekV3ForCausalLM",
        {
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "max_position_embeddings": 163840,
            "rope_scaling": {
                "type": "yarn",
                "factor": 40,
                "original_max_position_embeddings": 4096,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
    )
    assert config.latent is not None and config.max_positions == 163840
    assert config.scale == pytest.approx(192**-0.5 * 1.3689**2, rel=1e-4)
    shape = KVShape(61, 1, config.head_dim, config.windows, config.latent.rank)
    for name, row in (("auto", 576 * 2), ("int8", 576 + 2 * 4), ("fp8", 576 + 2 * 4)):
        assert shape.block_bytes(16, torch.bfloat16, name) == 16 * 61 * row


@pytest.mark.parametrize("stored", ["auto", "int8", "fp8"])
def test_the_cache_takes_what_is_counted(saved: Saved, stored: str) -> None:
    folder, _ = saved
    runner = Runner(EngineConfig(model=folder, threads=1, kv_cache_blocks=7, kv_cache_dtype=stored))
    held = sum(tensor.nbytes for layer in runner.cache.layers for tensor in layer.tensors)
    assert held == 8 * runner.block_bytes
    assert runner.block_bytes == 16 * 3 * (40 * 4 if stored == "auto" else 40 + 8)
