"""Random adapters in the layout that PEFT saves, and the weights that they amount to."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.layers.lora import AdapterBank

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path,
    weights: dict[str, Tensor],
    *,
    rank: int,
    alpha: float = 8.0,
    targets: tuple[str, ...] = ALL,
    ranks: dict[str, int] | None = None,
    seed: int = 1,
    **config: Any,
) -> Path:
    """For the base model of ``weights``; ``ranks`` is the rank_pattern, other settings go to the config as they are."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        if module.split(".")[-1] not in targets:
            continue
        width = next((r for end, r in (ranks or {}).items() if module.endswith(end)), rank)
        down = torch.randn(width, weight.shape[1], generator=generator) / weight.shape[1] ** 0.5
        up = torch.randn(weight.shape[0], width, generator=generator) * 0.5
        tensors |= {
            f"base_model.model.{module}.lora_A.weight": down,
            f"base_model.model.{module}.lora_B.weight": up,
        }
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "bias": "none",
        "rank_pattern": ranks or {},
        **config,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merge(weights: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """``W + scale · B A``, as PEFT's merge_and_unload does it."""
    config = json.loads((folder / "adapter_config.json").read_bytes())
    tensors = load_file(folder / "adapter_model.safetensors")
    merged = dict(weights)
    for name, down in tensors.items():
        if ".lora_A." not in name:
            continue
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        rank = down.shape[0]
        alpha = next((a for end, a in config.get("alpha_pattern", {}).items() if module.endswith(end)), None)
        alpha = config["lora_alpha"] if alpha is None else alpha
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        up = tensors[name.replace(".lora_A.", ".lora_B.")]
        merged[f"{module}.weight"] = weights[f"{module}.weight"] + scale * up @ down
    return merged


def load(bank: AdapterBank, key: str, folder: Path) -> None:
    """Into a slot that is free, as rank 0 does in some steps."""
    slot = bank.free_slot
    assert slot is not None
    bank.hold(key, bank.read(folder))
    bank.place(slot, key)
