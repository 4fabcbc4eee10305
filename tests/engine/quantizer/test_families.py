"""Families whose blocks are wired in different ways: factors go only where they can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.evaluation.samples import Sample
from engine.evaluation.ways import Way, predict
from engine.quantizer.recipe import Recipe
from engine.quantizer.run import quantize
from tests.engine.models.hub import LATENT, save

TEXTS = torch.randint(2, 320, (8, 48), generator=torch.Generator().manual_seed(1)).tolist()


def logits(folder: Path) -> torch.Tensor:
    way = Way("as it is", folder=folder)
    found = predict(way.load(folder), [Sample(tokens) for tokens in TEXTS[:2]], way)
    return torch.cat([piece for pieces in found for piece in pieces])


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("Llama", {"num_key_value_heads": 4}),
        ("Qwen2", {}),
        ("Phi3", {}),
        ("Gemma2", {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"}),
        ("Olmo2", {}),
        ("Cohere", {}),
        ("Starcoder2", {}),
        ("SmolLM3", {}),
        ("Youtu", LATENT),
        ("Youtu", {**LATENT, "q_lora_rank": None}),
    ],
)
def test_scaled_inputs_leave_the_model_the_same(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path / "plain", family, intermediate_size=128, **changes)
    wanted = logits(tmp_path / "plain")
    for recipe, most in ((Recipe("smoothquant", 8, 128), 0.08), (Recipe("awq", 4, 32), 0.7)):
        (out := tmp_path / recipe.method).mkdir()
        quantize(tmp_path / "plain", out, recipe, TEXTS, dtype=torch.float32)
        assert 1e-4 < float((logits(out) - wanted).norm() / wanted.norm()) < most


def test_experts_are_rounded_to_nearest(tmp_path: Path) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    save(tmp_path / "plain", "Qwen3Moe", **experts)
    (out := tmp_path / "out").mkdir()
    quantize(tmp_path / "plain", out, Recipe("rtn", 8, 32), [], dtype=torch.float32)
    wanted = logits(tmp_path / "plain")
    assert float((logits(out) - wanted).norm() / wanted.norm()) < 0.1
