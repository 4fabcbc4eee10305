"""What a plan says that layers keep is what the engine keeps, for every family that it serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.kv_cache import KVShape
from engine.models.config import DecoderConfig
from engine.models.registry import read_family
from engine.state_cache import StateShape
from gateway.lab.plan.config_json import read_config
from gateway.lab.plan.precision import kv_layer_bytes
from gateway.lab.plan.shape import ModelShape
from tests.engine.models.hub import COMMON
from tests.engine.models.test_families import CASES


def engine_shapes(config: DecoderConfig) -> tuple[KVShape, StateShape | None]:
    """As ``Decoder`` and ``AltUpDecoder`` have them."""
    kept = {layer: mixer.state for layer, mixer in enumerate(config.mixers) if mixer}
    own = [layer for layer in range(config.layers) if layer not in kept]
    if config.altup:
        own = [layer for layer, source in enumerate(config.altup.sources) if source == layer]
    windows = tuple(config.windows[layer] for layer in own)
    latent = config.latent.rank if config.latent else None
    heads = 1 if latent else config.kv_heads
    shape = KVShape(len(own), heads, config.head_dim, windows, latent, config.chunked)
    return shape, StateShape(kept) if kept else None


def saved(folder: Path, family: str, changes: dict[str, Any]) -> dict[str, Any]:
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **changes})
    config.architectures = [f"{family.removesuffix('Text')}ForCausalLM"]
    config.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_the_cache_is_the_engines_to_the_byte(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    raw = saved(tmp_path, family, changes)
    found = read_config(raw, family)
    kv, states = engine_shapes(read_family(raw["architectures"][0], raw))
    attention = found.attention
    assert found.windows == kv.windows
    for name, kept in (("bf16", "auto"), ("fp8", "fp8"), ("int8", "int8")):
        layer = kv_layer_bytes(name, attention.kept, attention.head_dim, attention.latent)
        assert len(found.windows) * layer * 16 == kv.block_bytes(16, torch.bfloat16, kept)
    assert found.state_bytes(2) == (states.slot_bytes(torch.bfloat16) if states else 0)


@pytest.mark.parametrize(("family", "changes"), CASES[::6])
def test_parameters_are_those_of_the_model(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    raw = saved(tmp_path, family, changes)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    real = sum(weight.numel() for weight in model.parameters())
    found: ModelShape = read_config(raw, family)
    # Norms and biases, which are left out, weigh more in models as small as these.
    assert found.parameters == pytest.approx(real, rel=0.03)
